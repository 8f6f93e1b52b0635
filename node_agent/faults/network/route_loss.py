"""route_loss: routes of the node vanish, or go bad."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from node_agent.control_paths import control_paths
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.routing import Entry
from node_agent.host.rtmessages import (
    BLACKHOLE,
    MAIN_TABLE,
    PROHIBIT,
    UNICAST,
    UNREACHABLE,
    address_of,
    interfaces_of,
    make_route,
    neighbour_of,
    prefix_of,
    route_of,
    shown,
)
from node_agent.signs import Sign, named
from node_agent.steps import Step
from node_agent.steps.link_state import Kept, kept
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.route_change import RouteChange

from .netfilter import find_far_ends

How = Literal["gone", "blackhole", "unreachable", "prohibit", "wrong_gateway"]
_KINDS = {"blackhole": BLACKHOLE, "unreachable": UNREACHABLE, "prohibit": PROHIBIT, "wrong_gateway": UNICAST}
_DEFAULT = ("0.0.0.0/0", "::/0")
_LOCAL_TABLE = 255
_METRIC6 = 1024
"""What the kernel makes of metric 0 in IPv6 (IP6_RT_PRIO_USER)."""
_TRIES = 64


def _network(text: str) -> str:
    return text if text in ("", "default") else str(ipaddress.ip_network(text, strict=True))


class BadRoutes(Target):
    """The routes that go, those that come, and the counters of packets without a route as they stood."""

    lost: tuple[Kept, ...]
    bad: tuple[Kept, ...]
    interfaces: tuple[str, ...]
    without: int

    @property
    def all(self) -> tuple[Kept, ...]:
        """Both."""
        return (*self.lost, *self.bad)

    def describe(self) -> str:
        away, new = (", ".join(shown(one.entry) for one in some) for some in (self.lost, self.bad))
        return f"{away}, now {new}" if away and new else away or new


class RouteLoss(Fault):
    """Routes to a network or to peers are taken away, or lead nowhere.

    What is taken away comes back with every attribute. Routes that control traffic takes are refused. Packets then
    take the next best route, as after the loss of a real one: often the default route.
    """

    name: ClassVar[str] = "route_loss"
    summary: ClassVar[str] = "a route vanishes or goes bad"
    operator_sees: ClassVar[str] = (
        "ENETUNREACH (gone), EINVAL (blackhole), EHOSTUNREACH (unreachable), EACCES (prohibit) or silence"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"destination": "10.9.0.0/16"},
        {"peers": ["10.77.0.2"], "how": "blackhole"},
    )

    destination: Annotated[str, AfterValidator(_network)] = Field(
        default="", description="network of the route (CIDR), or default; or give peers"
    )
    peers: tuple[str, ...] = Field(
        default=(), max_length=32, description="far ends whose route it is: names, addresses or networks"
    )
    how: How = Field(
        default="gone", description="gone; wrong_gateway: to where no router is; else the kernel refuses to send"
    )
    gateway: str = Field(default="", description="the wrong gateway; none: an address of that network nobody has")
    table: int = Field(default=MAIN_TABLE, ge=1, lt=2**32, description="routing table, of destination")

    def locate(self, reader: Reader, facts: Facts) -> BadRoutes:
        if bool(self.destination) == bool(self.peers):
            raise Refusal("destination: give it or peers", field="destination", allowed="one of the two")
        if self.table == _LOCAL_TABLE:
            raise Refusal(
                "table: 255 has the node's own addresses", field="table", allowed="254 (main) or another"
            )
        if self.gateway and self.how != "wrong_gateway":
            raise Refusal("gateway: only for wrong_gateway", field="gateway", allowed="how=wrong_gateway")
        networks = self._networks(reader)
        lost = self._lost(reader, networks)
        bad = [] if self.how == "gone" else [self._bad(reader, one, lost) for one in networks]
        _refuse_control(reader, lost, bad)
        names = {link.index: link.name for link in reader.routing.links()}
        indexes = {i for one in (*lost, *bad) for i in interfaces_of(one)}
        return BadRoutes(
            lost=tuple(kept(one) for one in lost), bad=tuple(kept(one) for one in bad),
            interfaces=tuple(sorted(names[i] for i in indexes if i in names)), without=without_route(reader),
        )  # fmt: skip

    def _networks(self, reader: Reader) -> list[str]:
        if self.peers:
            return list(find_far_ends(reader, self.peers).all)
        if self.destination != "default":
            return [self.destination]
        there = {route_of(one).destination for one in self._candidates(reader)}
        found = [one for one in _DEFAULT if one in there]
        if not found:
            raise Refusal("destination: there is no default route", field="destination", allowed="a network")
        return found

    def _candidates(self, reader: Reader) -> list[Entry]:
        return [one for one in reader.routing.routes() if route_of(one).table == self.table]

    def _lost(self, reader: Reader, networks: Sequence[str]) -> list[Entry]:
        """Routes of exactly these networks; for peers whose own route is to vanish, the one that leads to them."""
        found = [one for one in self._candidates(reader) if route_of(one).destination in networks]
        if self.how != "gone":
            return found
        if self.peers:
            led = [reader.routing.route_to(one.partition("/")[0]) for one in networks]
            places = {route_of(one).place for one in led if one is not None}
            found = [one for one in reader.routing.routes() if route_of(one).place in places]
        # Where there is none, the step says so: then whoever has taken it away has been named before.
        return found or [make_route(one, table=self.table) for one in networks]

    def _bad(self, reader: Reader, network: str, lost: Sequence[Entry]) -> Entry:
        replaced = [one for one in lost if route_of(one).destination == network]
        best = min((route_of(one).priority for one in replaced), default=_METRIC6 if ":" in network else 0)
        if self.how != "wrong_gateway":
            return make_route(network, kind=_KINDS[self.how], table=self.table, priority=best)
        index, gateway = self._wrong(reader, network, replaced)
        if any(route_of(one).gateway == gateway for one in replaced):
            raise Refusal(f"gateway: {gateway} is the right one", field="gateway", allowed="another address")
        return make_route(network, table=self.table, priority=best, gateway=gateway, index=index)

    def _wrong(self, reader: Reader, network: str, replaced: Sequence[Entry]) -> tuple[int, str]:
        """Interface and address of the wrong gateway."""
        led = reader.routing.route_to(self.gateway or network.partition("/")[0])
        indexes = [i for one in (*replaced, *((led,) if led else ())) for i in interfaces_of(one)]
        if not indexes:
            allowed = "a network that the node has a route to"
            raise Refusal(f"destination: no interface leads to {network}", field="destination", allowed=allowed)
        if self.gateway:
            return indexes[0], self.gateway
        own = [one for one in reader.routing.addresses() if indexes[0] in interfaces_of(one)]
        ours = [one for one in own if (":" in address_of(one)) == (":" in network)]
        if not ours:
            raise Refusal(f"gateway: none to choose for {network}", field="gateway", allowed="an address")
        taken = {address_of(one) for one in own}
        taken |= {neighbour_of(one).address for one in reader.routing.neighbours()}
        return indexes[0], _nobody(f"{address_of(ours[0])}/{prefix_of(ours[0])}", taken, self.seed)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, BadRoutes)
        change = RouteChange(lost=target.lost, bad=target.bad, interfaces=target.interfaces)
        return (MarkFile(name=tag, text=change.describe()), change)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="routing table", covers=("packets of new and open connections, sent or forwarded",),
            not_covered=("a routing daemon or network manager may put its route back",),
        )  # fmt: skip

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        if isinstance(target, BadRoutes) and not any("." in route_of(one.entry).destination for one in target.all):
            return ()
        when = "once something is sent there, and no other route takes it"
        return (named("IPv4 packets had no route", "/proc/net/snmp", "Ip OutNoRoutes", when),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, BadRoutes)
        change = RouteChange(lost=target.lost, bad=target.bad, interfaces=target.interfaces)
        now = reader.routing.routes()
        back = [shown(one.entry) for one in target.lost if one.entry in now]
        standing = change.standing(reader.routing)
        notes = [f"{one} is there again" for one in back]
        if len(standing) < len(target.bad):
            notes.append("somebody has removed a bad route")
        armed = len(standing) == len(target.bad) and (bool(target.bad) or len(back) < len(target.lost))
        without = max(0, without_route(reader) - target.without)
        return Evidence(armed=armed, hits=without, counters={"packets_without_route": without}, notes=tuple(notes))


def without_route(reader: Reader) -> int:
    """Packets of the node's own that had no route since boot, both families (Ip and Ip6 OutNoRoutes)."""
    found = 0
    if reader.exists("/proc/net/snmp"):
        heads, values = (x.split() for x in reader.read_text("/proc/net/snmp").splitlines() if x.startswith("Ip:"))
        found += int(values[heads.index("OutNoRoutes")])
    if reader.exists("/proc/net/snmp6"):
        words = reader.read_text("/proc/net/snmp6").split()
        found += int(words[words.index("Ip6OutNoRoutes") + 1])
    return found


def _nobody(network: str, taken: set[str], seed: int) -> str:
    """An address of the network that is not taken, as far as this node knows."""
    dice = random.Random(seed)  # noqa: S311  (a choice that can be made again)
    own = ipaddress.ip_interface(network).network
    for _ in range(_TRIES):
        found = str(own[dice.randrange(1, min(own.num_addresses - 1, 1 << 32))])
        if found not in taken:
            return found
    raise Refusal(f"gateway: {own} is full", field="gateway", allowed="an address")


def _refuse_control(reader: Reader, lost: Sequence[Entry], bad: Sequence[Entry]) -> None:
    """No route by which sshd or the agent answers just now, and none that would take their packets instead."""
    for path in control_paths(reader):
        if path.peer.startswith("fe80:"):
            continue
        route = reader.routing.route_to(path.peer, path.local)
        length = int(route_of(route).destination.partition("/")[2]) if route is not None else 0
        takes = route is not None and any(route_of(one).place == route_of(route).place for one in lost)
        for one in bad:
            network = ipaddress.ip_network(route_of(one).destination)
            takes = takes or (ipaddress.ip_address(path.peer) in network and network.prefixlen >= length)
        if takes:
            raise Refusal(
                f"destination: control traffic with {path.peer} takes that route", field="destination",
                allowed="a route that control does not need",
            )  # fmt: skip
