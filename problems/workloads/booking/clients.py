"""What clients of the booking service do: open a session, search, book, read back, sometimes change or cancel.

The ledger has a booking as a key whose value is `FLIGHT/VERSION`, and nothing once it is cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.run.arrivals import Tide
from labctl.run.load import Client, LoadPlan, Reply

ROUTES = (("AMS", "OSL"), ("AMS", "LIS"), ("BER", "ATH"), ("OSL", "LIS"), ("ATH", "BER"))
FIRST = "session"
THINK_S = 0.4
CHANGES, CANCELS = 0.3, 0.2
"""Shares of bookings that are changed once, and that are cancelled in the end."""

NO_AND_MEANT = (409,)

TIDE = Tide(rate_per_s=1.2, swing=0.4, cycle_s=40)
"""Sessions a second; each is some five requests."""


def value_of(booking: Mapping[str, Any]) -> str:
    """A booking as the ledger has it; "" for one that is cancelled."""
    return "" if booking["state"] == "cancelled" else f"{booking['flight']}/{booking['version']}"


def _seen(reply: Reply) -> str | None:
    if reply.status == 404:
        return ""
    return value_of(reply.body) if reply.ok else None


async def session(client: Client) -> None:
    """One client, from arrival to leaving. Whoever gets no answer leaves."""
    opened = await client.ask("session", "POST", "/sessions", body={"user": client.name})
    if not opened.ok:
        return
    client.headers = {"Authorization": f"Bearer {opened.body['token']}"}
    await client.think(THINK_S)
    origin, destination = client.rng.choice(ROUTES)
    found = await client.ask("search", "GET", f"/flights?origin={origin}&destination={destination}")
    if not found.ok or not found.body:
        return
    await client.think(THINK_S)
    await _book(client, [int(flight["id"]) for flight in found.body])


async def _book(client: Client, flights: list[int]) -> None:
    reference, flight = f"b-{client.name}", client.rng.choice(flights)
    path, version = f"/bookings/b-{client.name}", 1
    booked = await client.ask(
        "book", "PUT", path, body={"flight": flight, "passenger": f"Passenger {client.name}"},
        refused=NO_AND_MEANT, key=reference, value=f"{flight}/1",
    )  # fmt: skip
    await client.think(THINK_S)
    await client.ask("read", "GET", path, refused=(404,), key=reference, saw=_seen)
    if not booked.ok:
        return
    if client.rng.random() < CHANGES:
        await client.think(THINK_S)
        other = client.rng.choice(flights)
        moved = await client.ask(
            "change", "PATCH", path, body={"flight": other, "version": version},
            refused=NO_AND_MEANT, key=reference, value=f"{other}/{version + 1}",
        )  # fmt: skip
        if moved.answer not in ("ok", "refused"):
            return
        version += moved.ok
    if client.rng.random() < CANCELS:
        await client.think(THINK_S)
        await client.ask(
            "cancel", "DELETE", f"{path}?version={version}", refused=NO_AND_MEANT, key=reference, value=""
        )


def load_plan(url: str, seed: int, tide: Tide = TIDE) -> LoadPlan:
    """The load of the booking service behind `url`."""
    return LoadPlan(url=url, tide=tide, seed=seed, session=session, first=FIRST)
