"""What the node believes a neighbour's link-layer address to be."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.host.routing import Entry
from node_agent.host.rtmessages import (
    NUD_KNOWN,
    NUD_PERMANENT,
    NUD_REACHABLE,
    NUD_STALE,
    by_hand,
    make_neighbour,
    neighbour_of,
    with_state,
)
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.link_state import Kept, all_of, find_link, part_of

Lasting = Literal["permanent", "reachable"]
_STATES = {"permanent": NUD_PERMANENT, "reachable": NUD_REACHABLE}


class NeighbourEntry(Step):
    """Puts link-layer address `mac` into the ARP or ND entry of `address` on an interface.

    `lasting` permanent: nothing that arrives changes it; reachable: the kernel finds out after a while. Reverting
    puts back what was there: an entry that somebody made as it was; one that was found out by asking as stale, so
    that the kernel asks again at its first use (neigh_timer_handler() in net/core/neighbour.c). An entry that has
    another address than ours meanwhile is not touched, so reverting twice equals once.
    """

    kind: Literal["neighbour_entry"] = "neighbour_entry"
    interface: str
    index: int
    address: str
    mac: str = Field(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$")
    lasting: Lasting = "permanent"
    was: Kept | None = None

    @property
    def item(self) -> str:
        """As residue calls it."""
        return f"{self.address} dev {self.interface}"

    def describe(self) -> str:
        return f"believe {self.address} to be at {self.mac} on {self.interface} ({self.lasting})"

    def resources(self) -> tuple[Resource, ...]:
        return (all_of("neighbour", self.item), part_of("interface", self.interface, self.item))

    def capture(self, reader: Reader) -> Undo:
        if find_link(reader.routing, self.index) is None:
            raise ConflictError(f"{self.interface} is gone")
        return {}

    def apply(self, host: Host) -> None:
        host.routing.put(make_neighbour(self.index, self.address, self.mac, _STATES[self.lasting]))

    def revert(self, host: Host, undo: Undo | None) -> None:
        if find_link(host.routing, self.index) is None:
            return
        now, before = host.routing.neighbour(self.index, self.address), self._before()
        if now is not None and not self.is_ours(now):
            return
        if before is not None and (now is not None or by_hand(before)):
            host.routing.put(before)
        elif now is not None:
            host.routing.take(now)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if find_link(reader.routing, self.index) is None:
            return ()
        now, before = reader.routing.neighbour(self.index, self.address), self._before()
        if now is not None and self.is_ours(now):
            return (f"{self.address} is still believed to be at {self.mac}",)
        if now is None and before is not None and by_hand(before):
            return (f"the entry of {self.address} on {self.interface} is missing",)
        return ()

    def is_ours(self, entry: Entry) -> bool:
        """Whether an entry says what this step made it say."""
        return neighbour_of(entry).mac == self.mac

    def _before(self) -> Entry | None:
        if self.was is None:
            return None
        found = self.was.entry
        if by_hand(found):
            return found
        return with_state(found, NUD_STALE) if neighbour_of(found).state & NUD_KNOWN else None
