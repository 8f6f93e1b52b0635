"""What faults of an interface's link share: which interface, what it has, and what the kernel counts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from node_agent.control_paths import management_links, stacked_on
from node_agent.errors import Refusal
from node_agent.fault import Target
from node_agent.host import Reader
from node_agent.host.routing import Link
from node_agent.host.rtmessages import interfaces_of, shown
from node_agent.signs import Sign, rises
from node_agent.steps.link_state import MAX_ENTRIES, Kept, LinkState, Way, find_link, kept

InterfaceName = Annotated[
    str, Field(max_length=15, description="network interface; none: the only one that control does not need")
]
WayDown = Annotated[
    Way,
    Field(
        description="carrier: lost as by a pulled cable, where the driver can; down: set down, as by ip link; "
        "any: the first that goes"
    ),
]
_OURS = "gf"
"""Interfaces with this beginning are made by other faults."""


class LinkTarget(Target):
    """An interface, what hangs on it and on those stacked on it, and how often it had lost its carrier."""

    name: str
    members: tuple[int, ...]
    carrier: bool
    stacked: tuple[str, ...]
    entries: tuple[Kept, ...]
    losses: int

    def describe(self) -> str:
        also = f" and what is stacked on it ({', '.join(self.stacked)})" if self.stacked else ""
        return f"interface {self.name}{also} with {len(self.entries)} addresses, routes and neighbours"

    def step(self, way: Way, *, leave_up: bool = False) -> LinkState:
        """The change of its link."""
        return LinkState(name=self.name, members=self.members, names=(self.name, *self.stacked), way=way,
                         leave_up=leave_up, carrier=self.carrier, entries=self.entries)  # fmt: skip


def find_link_target(reader: Reader, interface: str) -> LinkTarget:
    """The interface that is named, or the only candidate. Raises :class:`Refusal` naming the field.

    One that is down already is refused by the step: then whoever holds it has been named before.
    """
    links = reader.routing.links()
    needed = management_links(reader)
    link = _named(links, interface) if interface else _only(reader, links, needed)
    if link.loopback:
        raise Refusal("interface: lo has no link", field="interface", allowed="a network interface")
    if link.index in needed:
        # There is no guard below IP: whoever loses the way in cannot recover by it.
        raise Refusal(
            f"interface: {link.name} is never a target: {needed[link.index]}", field="interface",
            allowed="an interface that control does not need",
        )  # fmt: skip
    stacked = tuple(one for one in links if one.up and one.name in stacked_on(reader, link.name))
    members = (link.index, *(one.index for one in stacked))
    entries = reader.routing.attached(members)
    if len(entries) > MAX_ENTRIES:
        raise Refusal(
            f"interface: {link.name} has {len(entries)} routes and addresses to put back", field="interface",
            allowed=f"one with at most {MAX_ENTRIES}",
        )  # fmt: skip
    return LinkTarget(
        name=link.name, members=members, carrier=link.carrier, stacked=tuple(one.name for one in stacked),
        entries=tuple(kept(one) for one in entries), losses=losses(reader, link.name),
    )  # fmt: skip


def _named(links: object, interface: str) -> Link:
    assert isinstance(links, (list, tuple))
    found = next((link for link in links if link.name == interface), None)
    if found is None:
        names = ", ".join(link.name for link in links if not link.loopback)
        raise Refusal(f"interface: there is no {interface}", field="interface", allowed=names)
    assert isinstance(found, Link)
    return found


def _only(reader: Reader, links: object, needed: dict[int, str]) -> Link:
    assert isinstance(links, (list, tuple))
    with_address = {interfaces_of(one)[0] for one in reader.routing.addresses()}
    able = [x for x in links if x.index in with_address and not x.loopback and not x.name.startswith(_OURS)]
    free = [x for x in able if x.index not in needed]
    if not free and len(able) == 1:
        raise Refusal(
            f"interface: {able[0].name} is the only one: {needed[able[0].index]}", field="interface",
            allowed="a node with another interface",
        )  # fmt: skip
    if len(free) != 1:
        names = ", ".join(x.name for x in free) or "none that control does not need"
        raise Refusal(f"interface: this node has {len(free)} to choose from", field="interface", allowed=names)
    assert isinstance(free[0], Link)
    return free[0]


def losses(reader: Reader, name: str) -> int:
    """How often an interface has lost its carrier since it was made (sysfs-class-net, carrier_down_count)."""
    path = f"/sys/class/net/{name}/carrier_down_count"
    return int(reader.read_text(path)) if reader.exists(path) else 0


def name_now(reader: Reader, target: LinkTarget) -> str:
    """Its name, which may have changed; empty where it is gone."""
    link = find_link(reader.routing, target.members[0])
    return link.name if link else ""


def link_signs(target: LinkTarget | None) -> tuple[Sign, ...]:
    """Counters of the carrier, which say who looks that it was away."""
    name = target.name if target else "*"
    return (
        rises("the interface lost its carrier", f"/sys/class/net/{name}/carrier_down_count"),
        rises(
            "its state changed, as ip -s link and monitoring count it", f"/sys/class/net/{name}/carrier_changes"
        ),
    )


def first_entries(target: LinkTarget) -> str:
    """Some of what the kernel forgets, for the plan."""
    few = [shown(one.entry) for one in target.entries[:3]]
    return ", ".join(few) + (" …" if len(target.entries) > len(few) else "")
