"""Flights and bookings in PostgreSQL. Each change is one transaction, with its confirmation in the outbox.

The reference of a booking is chosen by the client, so that asking twice books once. Each change names the version
it builds on: one that comes late is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class Refused(Exception):
    """The service says no and means it."""


class NotThere(Exception):
    """There is no booking of that reference."""


class Booking(NamedTuple):
    """One booking as it is now; `state` is booked or cancelled."""

    reference: str
    flight: int
    passenger: str
    version: int
    state: str


class Connection(Protocol):
    """What is needed of psycopg's connections. Leaving `transaction()` commits, or rolls back on an exception."""

    def transaction(self) -> AbstractContextManager[Any]: ...
    def execute(self, query: str, params: Sequence[Any] = ()) -> Any: ...


_READ = "SELECT reference, flight, passenger, version, state FROM bookings WHERE reference = %s"
_TAKE = "UPDATE flights SET free = free - 1 WHERE id = %s AND free > 0 RETURNING id"
_GIVE = "UPDATE flights SET free = free + 1 WHERE id = %s"
_TELL = "INSERT INTO outbox (reference, version, kind) VALUES (%s, %s, %s)"


def flights(db: Connection, origin: str, destination: str) -> list[dict[str, Any]]:
    """Flights of a route that have seats left, soonest first."""
    query = (
        "SELECT id, departs::text, price_cents, free FROM flights"
        " WHERE origin = %s AND destination = %s AND free > 0 ORDER BY departs LIMIT 20"
    )
    rows = db.execute(query, (origin, destination)).fetchall()
    return [{"id": r[0], "departs": r[1], "price_cents": r[2], "free": r[3]} for r in rows]


def read(db: Connection, reference: str) -> Booking:
    """A booking. Raises :class:`NotThere`."""
    return _found(db.execute(_READ, (reference,)).fetchone(), reference)


def book(db: Connection, reference: str, flight: int, passenger: str) -> Booking:
    """Take a seat; the same reference again is the same booking. Raises :class:`Refused` where none is left."""
    with db.transaction():
        row = db.execute(f"{_READ} FOR UPDATE", (reference,)).fetchone()
        if row is not None:
            known = Booking(*row)
            if (known.flight, known.passenger, known.state) != (flight, passenger, "booked"):
                raise Refused(f"{reference} is another booking")
            return known
        _take(db, flight)
        db.execute(
            "INSERT INTO bookings (reference, flight, passenger, version, state) VALUES (%s, %s, %s, 1, 'booked')",
            (reference, flight, passenger),
        )
        db.execute(_TELL, (reference, 1, "booked"))
    return Booking(reference, flight, passenger, 1, "booked")


def change(db: Connection, reference: str, version: int, flight: int) -> Booking:
    """Move a booking to another flight; asked again, it is moved already.

    Raises :class:`Refused` for an old version or a full flight.
    """
    with db.transaction():
        known = _found(db.execute(f"{_READ} FOR UPDATE", (reference,)).fetchone(), reference)
        if (known.state, known.version, known.flight) == ("booked", version + 1, flight):
            return known
        _check(known, version)
        for one in sorted({known.flight, flight}):  # in one order everywhere: no two changes wait for each other
            db.execute("SELECT id FROM flights WHERE id = %s FOR UPDATE", (one,))
        _take(db, flight)
        db.execute(_GIVE, (known.flight,))
        db.execute(
            "UPDATE bookings SET flight = %s, version = version + 1, changed = now() WHERE reference = %s",
            (flight, reference),
        )
        db.execute(_TELL, (reference, version + 1, "changed"))
    return known._replace(flight=flight, version=version + 1)


def cancel(db: Connection, reference: str, version: int) -> Booking:
    """Give the seat back; asked again, it is given back already. Raises :class:`Refused` for an old version."""
    with db.transaction():
        known = _found(db.execute(f"{_READ} FOR UPDATE", (reference,)).fetchone(), reference)
        if (known.state, known.version) == ("cancelled", version + 1):
            return known
        _check(known, version)
        db.execute(_GIVE, (known.flight,))
        db.execute(
            "UPDATE bookings SET state = 'cancelled', version = version + 1, changed = now() WHERE reference = %s",
            (reference,),
        )
        db.execute(_TELL, (reference, version + 1, "cancelled"))
    return known._replace(version=version + 1, state="cancelled")


def _take(db: Connection, flight: int) -> None:
    if db.execute(_TAKE, (flight,)).fetchone() is None:
        raise Refused(f"flight {flight} is sold out")


def _check(known: Booking, version: int) -> None:
    if known.state != "booked" or known.version != version:
        raise Refused(f"{known.reference} is {known.state} in version {known.version}")


def _found(row: Sequence[Any] | None, reference: str) -> Booking:
    if row is None:
        raise NotThere(reference)
    return Booking(*row)
