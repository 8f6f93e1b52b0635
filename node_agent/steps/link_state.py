"""An interface that goes down, and everything that the kernel forgets with that."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.errors import ApplyError, ConflictError
from node_agent.host import Host, Reader
from node_agent.host.routing import Entry, Link, Routing, RoutingReader
from node_agent.host.rtmessages import by_kernel, identity, interfaces_of, item_of, never_by_hand, route_of, shown
from node_agent.steps.base import Resource, Step, Undo

MAX_ENTRIES = 500
"""Of what hangs on an interface: they are in the journal, twice."""

Way = Literal["any", "carrier", "down"]
_SETTLE_S = 8.0
"""A card takes up to 3 s to agree with its switch on a speed, and the check for duplicate addresses 1 s to 2 s."""
_PASSES = 4


class Kept(BaseModel):
    """An entry of the kernel's tables, as data: :class:`node_agent.host.routing.Entry`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["address", "route", "neighbour", "nexthop"]
    raw: str = Field(pattern=r"^([0-9a-f]{2})+$")

    @property
    def entry(self) -> Entry:
        """For the host."""
        return Entry(self.kind, self.raw)


def all_of(kind: str, name: str) -> Resource:
    """An interface with all that hangs on it, or an entry with all of its parts."""
    return Resource(kind, name, 0, 1 << 32)


def part_of(kind: str, name: str, part: str) -> Resource:
    """One thing that hangs on an interface, or what one interface has of an entry.

    It conflicts with the whole and with the same part. A fault of an entry and one of the interface do not go
    together: the kernel forgets the entry with the interface, and two would put back what each remembers.
    """
    number = zlib.crc32(part.encode())
    return Resource(kind, name, number, number + 1)


def kept(entry: Entry) -> Kept:
    """For a step."""
    return Kept(kind=entry.kind, raw=entry.raw)


class LinkState(Step):
    """Takes the link of an interface away; reverting brings it up with what it had.

    `way` carrier: by the switch that some drivers have, and nothing else changes. down: as `ip link set down`
    does; the kernel then forgets routes, IPv6 addresses, neighbours and nexthop objects, also of the interfaces
    stacked on it (`members`, by number, this one first). any: the first where that goes. `leave_up`: only what is
    undone; a helper sets it down.

    What hung on the interface comes with the step, so that no part of the journal is needed to put it back. An
    entry that is there is not touched, so reverting twice equals once. What an interface had that was deleted,
    or moved to another network namespace, went with it; one that was renamed keeps its number. The kernel makes
    what it makes itself only with a carrier: while a cable is out, that is not waited for.
    """

    kind: Literal["link_state"] = "link_state"
    name: str
    members: Annotated[tuple[int, ...], Field(min_length=1)]
    names: tuple[str, ...] = ()
    """Of the members, as they are called when it is planned."""
    way: Way = "any"
    leave_up: bool = False
    carrier: bool = True
    """Whether it had one before."""
    entries: tuple[Kept, ...] = Field(default=(), max_length=MAX_ENTRIES)

    @property
    def index(self) -> int:
        """Its number."""
        return self.members[0]

    def describe(self) -> str:
        if self.leave_up:
            return (
                f"remember the {len(self.entries)} entries of {self.name}: what goes down is brought up with them"
            )
        how = {"any": "take the carrier of {}, or set it down", "carrier": "take the carrier of {}",
               "down": "set {} down"}[self.way].format(self.name)  # fmt: skip
        return f"{how}; {len(self.entries)} addresses, routes and neighbours come back later"

    def resources(self) -> tuple[Resource, ...]:
        names = dict(zip(self.members, self.names, strict=False))
        items = dict.fromkeys(item_of(one.entry, names) for one in self.entries if one.kind != "nexthop")
        whole = tuple(all_of("interface", name) for name in self.names)
        return (*whole, *(part_of(kind, item, self.name) for kind, item in items))

    def capture(self, reader: Reader) -> Undo:
        link = find_link(reader.routing, self.index)
        if link is None or not link.up:
            raise ConflictError(f"{self.name} is {'down' if link else 'gone'} already")
        return {}

    def apply(self, host: Host) -> None:
        if self.leave_up:
            return
        if self.way != "down" and host.routing.set_carrier(self.index, False):
            return
        if self.way == "carrier":
            raise ApplyError(f"the driver of {self.name} has no switch for its carrier")
        host.routing.set_up(self.index, False)

    def revert(self, host: Host, undo: Undo | None) -> None:
        bring_up(host.routing, self, timeout_s=_SETTLE_S)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        there = {one.index: one for one in reader.routing.links()}
        if self.index not in there:
            return ()
        down = tuple(f"{there[i].name} is down" for i in self.members if i in there and not there[i].up)
        return down or tuple(f"{shown(one)} of {self.name} is missing" for one in missing(reader.routing, self))


def find_link(routing: RoutingReader, index: int) -> Link | None:
    """An interface by its number."""
    return next((link for link in routing.links() if link.index == index), None)


def bring_up(routing: Routing, state: LinkState, *, timeout_s: float) -> bool:
    """Give an interface its link again, and what is missing of its entries; whether nothing was missing.

    Waits so long at most, 0: never. Entries depend on each other in ways that only the kernel knows: those that it
    does not take yet are tried again after the others, and what it never takes is left for `leftovers` to tell.
    """
    there = {one.index: one for one in routing.links()}
    found = there.get(state.index)
    if found is None:
        return True
    if state.carrier and not found.carrier and found.up:
        routing.set_carrier(state.index, True)
    for index in state.members:
        if index in there and not there[index].up:
            routing.set_up(index, True)
    lacking = missing(routing, state)
    if timeout_s:  # a route whose source is an IPv6 address is taken once that address is checked
        _put(routing, [one for one in lacking if one.kind == "address"])
        routing.settle(state.members, carrier=state.carrier, timeout_s=timeout_s)
        lacking = missing(routing, state)
    _put(routing, [one for one in lacking if not never_by_hand(one)])
    return not lacking


def _put(routing: Routing, entries: Sequence[Entry]) -> None:
    for _ in range(_PASSES):
        refused = [one for one in entries if not _taken(routing, one)]
        if len(refused) == len(entries):
            return
        entries = refused


def _taken(routing: Routing, entry: Entry) -> bool:
    try:
        routing.put(entry)
    except OSError:  # its gateway or source address may come later; what stays away is seen by looking
        return False
    return True


def missing(routing: RoutingReader, state: LinkState) -> tuple[Entry, ...]:
    """The entries that are not there, but for those in whose place others are now, or that cannot be yet."""
    there = {one.index: one for one in routing.links()}
    members = [i for i in state.members if i in there]
    now = routing.attached(members)
    known = {identity(one) for one in now}
    places = {route_of(one).place for one in now if one.kind == "route"}
    without_carrier = state.index not in there or not there[state.index].carrier
    before = {one.entry for one in state.entries}

    def wanted(entry: Entry) -> bool:
        if identity(entry) in known or any(i not in there for i in interfaces_of(entry)):
            return False
        if without_carrier and by_kernel(entry):
            return False
        return entry.kind != "route" or not _replaced(entry, places, before)

    return tuple(one.entry for one in state.entries if wanted(one.entry))


def _replaced(entry: Entry, places: set[tuple[str, int, int, int]], before: set[Entry]) -> bool:
    """Whether somebody has set another route of the same network and metric meanwhile: theirs stays."""
    place = route_of(entry).place
    alike = sum(route_of(one).place == place for one in before if one.kind == "route")
    return alike == 1 and place in places
