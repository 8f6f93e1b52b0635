"""Which TCP connections: what tcp_reset and half_open share."""

from __future__ import annotations

from pydantic import BaseModel, Field

from node_agent.errors import Refusal
from node_agent.fault import Facts, Target
from node_agent.guard import guarded_ports
from node_agent.host import Reader
from node_agent.scopes import ScopeFields, cgroup_root, find_scope
from node_agent.steps.nft_flows import SETS, NftFlows
from node_agent.traffic import parse_ports

from .netfilter import FarEnds, find_far_ends, free_queue

_MATCH = {"flows4": "ip", "flows6": "ip6"}


class ConnectionFields(BaseModel):
    """The parameters that say which connections. Nothing given: all, but for those that control needs."""

    peers: tuple[str, ...] = Field(
        default=(), max_length=64, description="far ends: names, addresses or networks (CIDR); none: everybody"
    )
    ports: str = Field(default="", description="ports of either end, such as 5432 or 5432,8000-8100")
    unit: str = Field(default="", description="only connections of this systemd unit")


class Connections(Target):
    """The connections that fit, as data; `seen` are how many there were when it was planned."""

    ends: FarEnds
    ports: tuple[tuple[int, int], ...]
    cgroups: tuple[str, ...]
    owner: str
    guard: tuple[int, ...]
    queue: int
    seen: int

    def describe(self) -> str:
        ports = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ports)
        parts = (f"{self.seen} TCP connections now", f"of {self.owner}" if self.owner else "",
                 f"with {', '.join(self.ends.all) or 'everybody'}", f"port {ports}" if ports else "")  # fmt: skip
        return " ".join(part for part in parts if part)

    def step(self, table: str, *, provoke: bool, needed: bool) -> NftFlows:
        """The step that finds them when it is applied."""
        return NftFlows(
            table=table, remotes=self.ends.all, ports=self.ports, cgroups=self.cgroups, guard=self.guard,
            provoke=provoke, needed=needed,
        )  # fmt: skip


def find_connections(reader: Reader, facts: Facts, wanted: ConnectionFields, *, needed: bool) -> Connections:
    """What the parameters name. Raises :class:`Refusal`, also where no connection fits and one is needed."""
    cgroups: tuple[str, ...] = ()
    owner = ""
    if wanted.unit:
        scope = find_scope(reader, facts, ScopeFields(unit=wanted.unit))
        root = cgroup_root(facts, "unit")
        owner, cgroups = scope.name, tuple(f"{root}{path}" for path in (scope.cgroup, *scope.also))
    ends = find_far_ends(reader, wanted.peers)
    found = Connections(
        ends=ends, ports=parse_ports(wanted.ports), cgroups=cgroups, owner=owner, guard=guarded_ports(reader),
        queue=free_queue(reader), seen=0,
    )  # fmt: skip
    seen = len(found.step("none", provoke=False, needed=True).fitting(reader))
    if needed and not seen:
        field = next((name for name in ("unit", "peers", "ports") if getattr(wanted, name)), "peers")
        raise Refusal(
            f"{field}: no TCP connection fits now, but for those that control needs",
            field=field, allowed="connections that ss -tn shows",
        )  # fmt: skip
    return found.model_copy(update={"seen": seen})


def of_known(counter: str, verdict: str) -> tuple[str, ...]:
    """Rules for packets of the connections in the sets of :class:`NftFlows`."""
    ends = ((name, _MATCH[name]) for name in SETS)
    return tuple(
        f"{ip} saddr . tcp sport . {ip} daddr . tcp dport @{name} counter name {counter} {verdict}"
        for name, ip in ends
    )
