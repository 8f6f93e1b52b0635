"""Which packets a network fault touches: from what a user types to what the kernel can match. Only looks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.fault import Facts
from node_agent.host import Reader

Protocol = Literal["any", "tcp", "udp", "icmp"]
Direction = Literal["out", "in", "both"]
PortRange = tuple[int, int]


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
    raise NotImplementedError
