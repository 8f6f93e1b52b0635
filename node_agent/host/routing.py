"""Interfaces and what hangs on them, as faults see the machine: addresses, routes, neighbours, nexthop objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

EntryKind = Literal["address", "route", "neighbour", "nexthop"]


@dataclass(frozen=True)
class Link:
    """A network interface of this network namespace. `carrier`: the kernel says LOWER_UP."""

    index: int
    name: str
    up: bool
    carrier: bool
    resolves: bool = True
    """Whether neighbours are looked up on it (no NOARP), as on Ethernet."""
    mac: str = ""
    loopback: bool = False


@dataclass(frozen=True)
class Entry:
    """One entry of the kernel's tables: the body of its rtnetlink(7) message in hexadecimal.

    The kernel's own words, without statistics and passing states: nothing it knows is lost on the way back, and
    two looks at the same entry are equal. :mod:`node_agent.host.rtmessages` reads and makes them.
    """

    kind: EntryKind
    raw: str


class RoutingReader(Protocol):
    """Looking."""

    def links(self) -> Sequence[Link]: ...
    def attached(self, indexes: Sequence[int]) -> Sequence[Entry]:
        """What the kernel forgets when these interfaces are set down, in the order in which it can come back."""

    def addresses(self) -> Sequence[Entry]:
        """All addresses, IPv4 and IPv6."""

    def routes(self) -> Sequence[Entry]:
        """All routes of all tables, IPv4 and IPv6."""

    def route_to(self, address: str, source: str = "") -> Entry | None:
        """The route that packets to an address take; None where there is none or it refuses them."""

    def neighbours(self) -> Sequence[Entry]:
        """All neighbour entries, proxies too."""

    def neighbour(self, index: int, address: str) -> Entry | None:
        """The neighbour entry of an address on an interface, in whatever state; None: there is none."""


class Routing(RoutingReader, Protocol):
    """Changing. All raise OSError with the kernel's errno."""

    def set_up(self, index: int, up: bool) -> None:
        """Set an interface up or down, as `ip link set` does."""

    def set_carrier(self, index: int, carrier: bool) -> bool:
        """Give or take the carrier of an interface; False where its driver cannot."""

    def put(self, entry: Entry) -> None:
        """Add an entry. One that is there already is fine; a neighbour entry replaces the one of its address."""

    def take(self, entry: Entry) -> None:
        """Remove an entry; gone already is fine."""

    def settle(self, indexes: Sequence[int], *, carrier: bool, timeout_s: float) -> None:
        """Wait, so long at most, for their carrier, if wanted, and until no address is tentative."""
