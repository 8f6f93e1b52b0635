"""mtu_blackhole: large packets vanish, and nobody is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Facts, PlanNotes, Target
from node_agent.lanes import LaneCounters
from node_agent.shape import MAX_PACKET, MIN_PACKET, Shape
from node_agent.signs import Sign

from .shaping import NETSTAT, SNMP, ShapedFault


class MtuBlackhole(ShapedFault):
    """IP packets of more than so many bytes vanish without an ICMP answer, as before a tunnel nobody knows of.

    Connections are made and small answers come; the first large one hangs. Large segments of TCP and UDP that a
    card would cut (GSO) are judged by the packets that become of them.
    """

    name: ClassVar[str] = "mtu_blackhole"
    summary: ClassVar[str] = "packets above a size vanish without an ICMP answer"
    operator_sees: ClassVar[str] = (
        "small requests work and large ones hang; ssh connects and freezes; ping -M do finds the exact size, no "
        "ICMP 'fragmentation needed' arrives; segments sent again with their full size (ss -ti)"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"mtu_bytes": 1400, "peers": ("10.77.0.1",), "direction": "out"},
        {"mtu_bytes": 1280},
    )
    not_covered: ClassVar[tuple[str, ...]] = (
        "fragments that are small enough: a large datagram without the don't-fragment bit may pass in pieces",
    )

    mtu_bytes: int = Field(
        default=1400, ge=MIN_PACKET, le=MAX_PACKET, description="largest IP packet that gets through, in bytes"
    )

    def shape(self) -> Shape:
        return Shape(max_packet_bytes=self.mtu_bytes)

    def hits(self, counted: LaneCounters) -> int:
        return counted.dropped

    def backend(self) -> str:
        return "tbf of a lane, whose burst is the largest packet (nftables, ifb)"

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        probing = "with net.ipv4.tcp_mtu_probing at the sender TCP finds the size by itself, after some seconds"
        return super().notes(facts, target).model_copy(update={"warnings": (probing,)})

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        again = (SNMP, "Tcp RetransSegs", "TCP segments sent again")
        waited = (NETSTAT, "TcpExt TCPTimeouts", "TCP timers that ran out")
        return () if self.direction == "in" else self.tcp_signs(again, waited)
