"""Routes that vanish or go bad, and the ones that were there."""

from __future__ import annotations

from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.host.routing import Entry, RoutingReader
from node_agent.host.rtmessages import Route, identity, interfaces_of, item_of, route_of, shown
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.link_state import Kept, all_of, part_of

_PASSES = 4


class RouteChange(Step):
    """Takes the routes `lost` away and puts the routes `bad` in; reverting does the opposite.

    Lost routes come back with every attribute they had. Not those that go through an interface that is down or
    gone, since the kernel would have forgotten them too, and not those in whose place (network, table, metric)
    somebody has set another meanwhile. `interfaces` are the names of those that they go through.
    """

    kind: Literal["route_change"] = "route_change"
    lost: tuple[Kept, ...] = ()
    bad: tuple[Kept, ...] = ()
    interfaces: tuple[str, ...] = ()

    def describe(self) -> str:
        away = f"take away {', '.join(shown(one.entry) for one in self.lost)}" if self.lost else ""
        new = f"put in {', '.join(shown(one.entry) for one in self.bad)}" if self.bad else ""
        return "; ".join(words for words in (away, new) if words)

    @property
    def items(self) -> tuple[str, ...]:
        """The routes as residue calls them."""
        return tuple(dict.fromkeys(item_of(one.entry, {})[1] for one in (*self.lost, *self.bad)))

    def resources(self) -> tuple[Resource, ...]:
        parts = (part_of("interface", name, item) for name in self.interfaces for item in self.items)
        return (*(all_of("route", item) for item in self.items), *parts)

    def capture(self, reader: Reader) -> Undo:
        now = reader.routing.routes()
        gone = [shown(one.entry) for one in self.lost if one.entry not in now]
        if gone:
            raise ConflictError(f"{gone[0]} is not there", allowed="one of: ip route show table all")
        taken = [shown(one) for one in self.standing(reader.routing)]
        if taken:
            raise ConflictError(f"there is such a route already: {taken[0]}")
        return {}

    def apply(self, host: Host) -> None:
        for one in self.lost:
            host.routing.take(one.entry)
        for one in self.bad:
            host.routing.put(one.entry)

    def revert(self, host: Host, undo: Undo | None) -> None:
        for entry in self.standing(host.routing):
            host.routing.take(entry)
        for _ in range(_PASSES):  # a route through a gateway is taken only once the gateway's network is there
            lacking = self.missing(host.routing)
            if not [one for one in lacking if _taken(host, one)]:
                return

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        still = tuple(f"{shown(one)} is still there" for one in self.standing(reader.routing))
        return (*still, *(f"{shown(one)} is missing" for one in self.missing(reader.routing)))

    def standing(self, routing: RoutingReader) -> tuple[Entry, ...]:
        """The bad routes that are there, as the kernel has them: it adds attributes of its own."""
        bad = {_look(one.entry) for one in self.bad} - {_look(one.entry) for one in self.lost}
        return tuple(one for one in routing.routes() if _look(one) in bad)

    def missing(self, routing: RoutingReader) -> tuple[Entry, ...]:
        """The lost routes that are not there and could be."""
        up = {link.index for link in routing.links() if link.up}
        now = routing.routes()
        known, bad = {identity(one) for one in now}, {_look(one.entry) for one in self.bad}
        before = {one.entry for one in self.lost}
        places = {route_of(one).place for one in now if _look(one) not in bad and one not in before}
        return tuple(
            one.entry
            for one in self.lost
            if one.entry not in known
            and all(index in up for index in interfaces_of(one.entry))
            and route_of(one.entry).place not in places
        )


def _taken(host: Host, entry: Entry) -> bool:
    try:
        host.routing.put(entry)
    except OSError:  # what stays away is seen by looking
        return False
    return True


def _look(entry: Entry) -> tuple[tuple[str, int, int, int], str, str]:
    route: Route = route_of(entry)
    return route.place, route.kind, route.gateway
