"""arp_poison: the node believes a wrong link-layer address of a peer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.control_paths import control_paths
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.routing import Link
from node_agent.host.rtmessages import interfaces_of, neighbour_of, route_of
from node_agent.signs import Sign, named
from node_agent.steps import Step
from node_agent.steps.link_state import Kept, kept
from node_agent.steps.neighbour_entry import Lasting, NeighbourEntry
from node_agent.steps.nft_table import NftChain, NftTable

from .netfilter import FarEnds, far_end_sets, find_far_ends, table_evidence

_DEFAULT = ("0.0.0.0/0", "::/0")
_LAST = 300
"""After everybody else's chains (NF_IP_PRI_LAST is 2**31 - 1, NF_IP_PRI_NAT_SRC 100): what really goes out."""


class Poisoned(Target):
    """Addresses on one interface, what is believed of them now, and what shall be."""

    interface: str
    index: int
    ends: FarEnds
    entries: tuple[tuple[str, Kept | None], ...]
    mac: str

    def describe(self) -> str:
        return f"{', '.join(address for address, _ in self.entries)} on {self.interface}, believed at {self.mac}"


class ArpPoison(Fault):
    """Packets to a peer go to a link-layer address where the peer is not, as after two machines held its address.

    Only this node's own entries are changed, ARP for IPv4 and neighbour discovery for IPv6; nothing is sent that
    could mislead others. Frames to an address that nobody has are lost; with `holder` another machine gets them.
    """

    name: ClassVar[str] = "arp_poison"
    summary: ClassVar[str] = "a wrong link-layer address is believed of a peer"
    operator_sees: ClassVar[str] = (
        "a peer that times out from this node only, while it answers ARP; ip neigh shows another MAC than arping"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"peers": ["10.77.0.2"]},
        {"peers": ["10.77.0.50", "fd00:77::2"], "mac": "02:00:5e:00:00:66", "lasting": "reachable"},
    )

    peers: tuple[str, ...] = Field(
        min_length=1, max_length=32, description="names or addresses on the node's own network, IPv4 and IPv6"
    )
    interface: str = Field(default="", max_length=15, description="where they are; none: where the route goes")
    mac: str = Field(
        default="", pattern=r"^(([0-9a-f]{2}:){5}[0-9a-f]{2})?$",
        description="the wrong address; none: one that nobody has, by the seed",
    )  # fmt: skip
    holder: str = Field(default="", description="a neighbour whose link-layer address it is instead")
    lasting: Lasting = Field(
        default="permanent", description="permanent: nothing corrects it; reachable: the kernel does after a while"
    )

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("netfilter.tables")

    def locate(self, reader: Reader, facts: Facts) -> Poisoned:
        found = [one.partition("/")[0] for one in find_far_ends(reader, self.peers).all if _single(one)]
        if not found:
            raise Refusal("peers: no single address", field="peers", allowed="names and addresses, no networks")
        link = self._link(reader, found)
        here = [one for one in found if self._is_on(reader, link, one)]
        if not here:
            allowed = "a machine on the node's own network, such as the gateway"
            raise Refusal(f"peers: not on the network of {link.name}", field="peers", allowed=allowed)
        _refuse_control(reader, here)
        entries = tuple((one, _entry(reader, link.index, one)) for one in here)
        ends = FarEnds(v4=tuple(f"{a}/32" for a in here if ":" not in a),
                       v6=tuple(f"{a}/128" for a in here if ":" in a))  # fmt: skip
        return Poisoned(
            interface=link.name, index=link.index, ends=ends, entries=entries, mac=self._mac(reader, link.index)
        )

    def _link(self, reader: Reader, addresses: list[str]) -> Link:
        links = {link.index: link for link in reader.routing.links()}
        if self.interface:
            found = next((one for one in links.values() if one.name == self.interface), None)
        else:
            routes = (reader.routing.route_to(one) for one in addresses)
            indexes = [i for route in routes if route is not None for i in interfaces_of(route)]
            found = links.get(indexes[0]) if indexes else None
        if found is None or not found.resolves:
            said = self.interface or "no interface to them"
            names = ", ".join(one.name for one in links.values() if one.resolves)
            raise Refusal(f"interface: {said} has neighbours to be wrong about", field="interface", allowed=names)
        return found

    def _is_on(self, reader: Reader, link: Link, address: str) -> bool:
        """Whether the node asks for its link-layer address on that interface."""
        if address.startswith("fe80:"):
            return bool(self.interface)
        route = reader.routing.route_to(address)
        return route is not None and link.index in interfaces_of(route) and not route_of(route).gateway

    def _mac(self, reader: Reader, index: int) -> str:
        if self.mac and self.holder:
            raise Refusal("holder: excludes mac", field="holder", allowed="one of mac and holder")
        if not self.holder:
            dice = random.Random(self.seed)  # noqa: S311  (a choice that can be made again)
            return self.mac or ":".join(f"{byte:02x}" for byte in (0x02, *dice.randbytes(5)))
        for end in find_far_ends(reader, (self.holder,), "holder").all:
            entry = reader.routing.neighbour(index, end.partition("/")[0])
            if entry is not None and neighbour_of(entry).mac:
                return neighbour_of(entry).mac
        allowed = "a neighbour in ip neigh (ping it first), or mac"
        raise Refusal(f"holder: the address of {self.holder} is not known", field="holder", allowed=allowed)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Poisoned)
        rules = tuple(
            f'oifname "{target.interface}" {family} daddr @{name} counter name sent'
            for family, name in (("ip", "v4"), ("ip6", "v6"))
        )
        counting = NftTable(
            name=tag, title=f"count what is sent to {target.describe()}", counters=("sent",),
            sets=far_end_sets(target.ends),
            chains=(NftChain(name="sent", hook="postrouting", priority=_LAST, rules=rules),),
        )  # fmt: skip
        return (counting, *self._entries(target))

    def _entries(self, target: Poisoned) -> tuple[NeighbourEntry, ...]:
        return tuple(
            NeighbourEntry(interface=target.interface, index=target.index, address=address, mac=target.mac,
                           lasting=self.lasting, was=was)
            for address, was in target.entries
        )  # fmt: skip

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="neighbour table", covers=("packets to these addresses that the node sends or forwards",),
            not_covered=("what peers believe of this node or of each other: nothing is sent",),
            warnings=("the kernel may correct it by itself: lasting=reachable",)
            if self.lasting == "reachable" else (),
        )  # fmt: skip

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        sent_again = named(
            "segments are sent again", "/proc/net/snmp", "Tcp RetransSegs", when="while TCP waits for the peer"
        )
        return (sent_again,)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Poisoned)
        counted = table_evidence(reader, tag, ("sent",))
        right = []
        for step in self._entries(target):
            now = reader.routing.neighbour(step.index, step.address)
            if now is None or not step.is_ours(now):
                right.append(f"{step.address} is not believed at {step.mac} any more")
        armed = len(right) < len(target.entries)
        return counted.model_copy(update={"armed": armed, "notes": (*counted.notes, *right)})


def _single(network: str) -> bool:
    return network.endswith("/128" if ":" in network else "/32")


def _entry(reader: Reader, index: int, address: str) -> Kept | None:
    found = reader.routing.neighbour(index, address)
    return kept(found) if found is not None else None


def _refuse_control(reader: Reader, addresses: list[str]) -> None:
    """The peers of control traffic, and the gateways that it or everything takes, are believed rightly."""
    needed: dict[str, str] = {}
    for path in control_paths(reader):
        route = None if ":" in path.peer and path.peer.startswith("fe80:") else reader.routing.route_to(path.peer)
        needed[(route_of(route).gateway if route else "") or path.peer] = f"control traffic with {path.peer}"
    for entry in reader.routing.routes():
        route_said = route_of(entry)
        if route_said.destination in _DEFAULT and route_said.gateway:
            needed.setdefault(route_said.gateway, "the default route")
    for address in addresses:
        if address in needed:
            raise Refusal(
                f"peers: {needed[address]} needs {address}",
                field="peers",
                allowed="what control does not need",
            )
