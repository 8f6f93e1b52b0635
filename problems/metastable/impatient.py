"""Clients that do not take no answer for an answer: each request is asked again, at once, until one comes.

So do apps whose makers thought that asking again costs nothing. What they ask is safe to ask twice.
"""

from __future__ import annotations

from typing import Any

from labctl.run.arrivals import Tide
from labctl.run.load import Client, LoadPlan, Reply
from problems.workloads.booking import clients

TRIES = 15
PATIENCE_S = 2.0
"""How long they wait for one answer."""


class Stubborn(Client):
    """A client whose every request is up to so many requests."""

    def __init__(self, client: Client) -> None:
        super().__init__(client._web, client._ledger, client._over, client.rng)
        self.name = client.name

    async def ask(self, operation: str, method: str, path: str, **more: Any) -> Reply:
        for _ in range(TRIES - 1):
            reply = await super().ask(operation, method, path, **more)
            if reply.answer in ("ok", "refused"):
                return reply
        return await super().ask(operation, method, path, **more)


async def session(client: Client) -> None:
    """One of the workload's sessions, stubbornly."""
    await clients.session(Stubborn(client))


def load_plan(url: str, seed: int) -> LoadPlan:
    """The load of the booking service behind `url`: more sessions than usual, and none that takes a rest."""
    tide = Tide(rate_per_s=3.0, swing=0.1, cycle_s=40)
    return LoadPlan(
        url=url, tide=tide, seed=seed, session=session, first=clients.FIRST, timeout_s=PATIENCE_S, most=600
    )
