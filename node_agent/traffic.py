"""Which packets a network fault touches: from what a user types to what the kernel can match. Only looks."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.errors import Refusal
from node_agent.fault import TAG_PREFIX, Facts
from node_agent.guard import guarded_ports
from node_agent.host import Reader
from node_agent.host.links import Interface
from node_agent.host.rtmessages import route_of
from node_agent.scopes import ScopeFields, cgroup_root, find_scope

Protocol = Literal["any", "tcp", "udp", "icmp"]
Direction = Literal["out", "in", "both"]
PortRange = tuple[int, int]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LAB_NETWORK = "lan"
"""The interface of the lab's own network between its nodes."""

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_ASKED = 8


class Selection(BaseModel):
    """Some of the traffic of one interface, as data. Both families empty: everybody, whatever the protocol below.

    `v4` and `v6` are networks of the far end, such as "10.77.0.2/32"; with only one of them given the other family
    is not touched. `ports` are inclusive ranges and fit where either end of a connection has one. `icmp` stands
    for both families. `cgroups` are paths below the cgroup root: traffic of sockets made in there, or below.
    `guard` are TCP ports that are let through always. `index` is the number of the interface when it was found:
    one that has another number is another interface.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    interface: str
    index: int = 0
    mtu: int = 1500
    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()
    protocol: Protocol = "any"
    ports: tuple[PortRange, ...] = ()
    direction: Direction = "both"
    cgroups: tuple[str, ...] = ()
    guard: tuple[int, ...] = ()
    owner: str = ""
    """The unit or container in words, for people."""

    @property
    def directions(self) -> tuple[Literal["out", "in"], ...]:
        """Out, in, or both, as the kernel's hooks are."""
        return ("out", "in") if self.direction == "both" else (self.direction,)

    def describe(self) -> str:
        """One line for people."""
        who = ", ".join((*self.v4, *self.v6)) or "everybody"
        ports = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ports)
        what = "all traffic" if self.protocol == "any" else self.protocol
        way = {"out": "to", "in": "from", "both": "with"}[self.direction]
        parts = (what, f"port {ports}" if ports else "", f"{way} {who}", f"on {self.interface}",
                 f"of {self.owner}" if self.owner else "")  # fmt: skip
        return " ".join(part for part in parts if part)


class TrafficFields(BaseModel):
    """The parameters that say which traffic. Nothing given: all of the lab network, but for what control needs."""

    interface: str = Field(
        default="", description="network interface; none: the one to the peers, or the lab network"
    )
    peers: tuple[str, ...] = Field(
        default=(), max_length=64, description="far ends: names, addresses or networks (CIDR); none: everybody"
    )
    ports: str = Field(default="", description="ports of either end, such as 5432 or 5432,8000-8100")
    protocol: Protocol = Field(default="any", description="tcp, udp, icmp (also ICMPv6) or any")
    direction: Direction = Field(default="both", description="out of the node, into it, or both")
    unit: str = Field(default="", description="only what this systemd unit sends")
    container: str = Field(default="", description="only traffic of this container, by id or name")


def find_traffic(reader: Reader, facts: Facts, wanted: TrafficFields) -> Selection:
    """What the parameters name on this node. Raises :class:`Refusal` naming the field."""
    networks = find_peers(reader, wanted.peers)
    ports = parse_ports(wanted.ports)
    if ports and wanted.protocol == "icmp":
        raise Refusal("ports: icmp has none", field="ports", allowed="protocol tcp, udp or any")
    if wanted.unit and wanted.container:
        raise Refusal("unit: unit and container exclude each other", field="unit", allowed="one of them")
    outside = _outside_of(reader, facts, wanted) if wanted.container else None
    interface = outside or _interface(reader, wanted.interface, networks)
    selection = Selection(
        interface=interface.name, index=interface.index, mtu=interface.mtu,
        v4=tuple(str(n) for n in networks if n.version == 4), v6=tuple(str(n) for n in networks if n.version == 6),
        protocol=wanted.protocol, ports=ports, direction=wanted.direction, guard=guarded_ports(reader),
    )  # fmt: skip
    if outside:
        turned: dict[str, Direction] = {"out": "in", "in": "out", "both": "both"}
        return selection.model_copy(
            update={"direction": turned[wanted.direction], "owner": f"container {wanted.container}"}
        )
    if wanted.unit or wanted.container:
        return _of_group(reader, facts, wanted, selection)
    return selection


def parse_ports(text: str, field: str = "ports") -> tuple[PortRange, ...]:
    """Ranges of ports from words such as "5432,8000-8100", joined and sorted. Raises :class:`Refusal`."""
    found: list[PortRange] = []
    for word in text.split(",") if text.strip() else ():
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", word)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= 65535:
            raise Refusal(
                f"{field}: {word.strip()!r}", field=field, allowed="ports 1 to 65535, such as 80,8000-8100"
            )
        found.append((first, last))
    done: list[PortRange] = []
    for first, last in sorted(found):
        if done and first <= done[-1][1] + 1:
            done[-1] = (done[-1][0], max(done[-1][1], last))
        else:
            done.append((first, last))
    return tuple(done)


def find_peers(reader: Reader, peers: Sequence[str], field: str = "peers") -> tuple[Network, ...]:
    """Networks of names, addresses and networks, in as few as possible, IPv4 first. Raises :class:`Refusal`."""
    found = [network for word in peers for network in _networks(reader, word.strip(), field)]
    four = ipaddress.collapse_addresses(n for n in found if isinstance(n, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(n for n in found if isinstance(n, ipaddress.IPv6Network))
    return (*sorted(four), *sorted(six))


def _networks(reader: Reader, word: str, field: str) -> list[Network]:
    try:
        return [ipaddress.ip_network(word.partition("%")[0], strict=False)]
    except ValueError:
        pass
    allowed = "names that the node resolves, addresses, or networks such as 10.77.0.0/24"
    if not _HOST_NAME.fullmatch(word):
        raise Refusal(f"{field}: {word!r} is no name, address or network", field=field, allowed=allowed)
    answer = reader.query(("getent", "ahosts", word)) or ""
    words = {line.split()[0].partition("%")[0] for line in answer.splitlines() if line.strip()}
    if not words:
        raise Refusal(f"{field}: this node does not resolve {word}", field=field, allowed=allowed)
    addresses = [ipaddress.ip_address(w) for w in sorted(words)]
    if any(a.is_loopback for a in addresses):
        raise Refusal(
            f"{field}: {word} is this node itself", field=field, allowed="other machines; or interface lo"
        )
    return [ipaddress.ip_network(a) for a in addresses]


def _interface(reader: Reader, wanted: str, networks: Sequence[Network]) -> Interface:
    known = [one for one in reader.links.list() if TAG_PREFIX not in one.alias]
    names = ", ".join(one.name for one in known)
    if wanted:
        found = next((one for one in known if one.name == wanted), None)
        if found is None:
            raise Refusal(f"interface: there is no {wanted}", field="interface", allowed=names)
        return found
    ways = {index for net in networks[:_ASKED] if (index := _way_to(reader, net)) is not None}
    if len(ways) == 1:
        found = next((one for one in known if one.index in ways), None)
        if found is not None and not found.loopback:
            return found
        if found is not None:
            raise Refusal(
                "peers: that is this node itself", field="peers", allowed="other machines; or interface lo"
            )
    lab = [one for one in known if one.name == LAB_NETWORK]
    cards = [one for one in known if one.up and not one.loopback and not one.kind]
    found = next(iter(lab), None) or (cards[0] if len(cards) == 1 else None)
    if found is None or len(ways) > 1:
        why = "the peers are reached by several" if len(ways) > 1 else f"there is no {LAB_NETWORK} here"
        raise Refusal(f"interface: which one? {why}", field="interface", allowed=names)
    return found


def _way_to(reader: Reader, network: Network) -> int | None:
    """The number of the interface that packets to a network leave by; None where that cannot be told."""
    if network.is_link_local:
        return None
    entry = reader.routing.route_to(str(network.network_address if network.prefixlen == 0 else network[0]))
    return route_of(entry).index if entry else None


def _of_group(reader: Reader, facts: Facts, wanted: TrafficFields, selection: Selection) -> Selection:
    field = "unit" if wanted.unit else "container"
    if wanted.direction != "out":
        raise Refusal(
            f"direction: what a {field} receives cannot be told from what others receive",
            field="direction", allowed=f"out; or ports instead of {field}",
        )  # fmt: skip
    scope = find_scope(reader, facts, ScopeFields(unit=wanted.unit, container=wanted.container))
    if not scope.cgroup:
        raise Refusal(f"{field}: {scope.name} has no control group of version 2", field=field, allowed="ports")
    root = cgroup_root(facts, field)
    paths = tuple(dict.fromkeys((scope.cgroup, *scope.also)))
    running = tuple(path for path in paths if reader.exists(f"{root}{path}/cgroup.procs"))
    if not running:
        raise Refusal(f"{field}: {scope.name} does not run", field=field, allowed="one that runs; or ports")
    return selection.model_copy(update={"cgroups": running, "owner": scope.name})


def _outside_of(reader: Reader, facts: Facts, wanted: TrafficFields) -> Interface | None:
    """The end on this side of a container's network: None where it shares the node's.

    What the container sends comes in there, so the direction is turned round.
    """
    scope = find_scope(reader, facts, ScopeFields(container=wanted.container))
    pid = scope.pid or _first_pid(reader, f"{cgroup_root(facts, 'container')}{scope.cgroup}")
    own, theirs = (reader.realpath(f"/proc/{who}/ns/net").rpartition("/")[2] for who in ("self", pid))
    if not pid or own == theirs:
        return None
    # By argv: another namespace is entered for one look, which pyroute2 does with a process of its own.
    inside = reader.query(("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-j", "link", "show")) or "[]"
    ends = {(one["link_index"], one["ifindex"]) for one in json.loads(inside) if one.get("link_index")}
    found = [one for one in reader.links.list() if (one.index, one.peer) in ends]
    if wanted.interface:
        found = [one for one in found if one.name == wanted.interface]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.name for one in found)
    raise Refusal(
        f"container: {wanted.container} has a network of its own, and {len(found)} ends of it are on this node",
        field="interface" if found else "container", allowed=names or "a container with a veth pair",
    )  # fmt: skip


def _first_pid(reader: Reader, folder: str) -> int:
    for path in (f"{folder}/cgroup.procs", *reader.glob(f"{folder}/**/cgroup.procs")):
        pids = reader.read_text(path).split() if reader.exists(path) else []
        if pids:
            return int(pids[0])
    return 0
