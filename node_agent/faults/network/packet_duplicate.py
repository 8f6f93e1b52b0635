"""packet_duplicate: some packets arrive twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Target
from node_agent.lanes import LaneCounters
from node_agent.shape import Shape
from node_agent.signs import Sign

from .chances import chance_for
from .shaping import NETSTAT, Correlation, ShapedFault, Share, expected


class PacketDuplicate(ShapedFault):
    """So many per cent of the packets arrive twice, in the long run, whatever the correlation."""

    name: ClassVar[str] = "packet_duplicate"
    summary: ClassVar[str] = "some packets arrive twice"
    operator_sees: ClassVar[str] = (
        "DUP! of ping, duplicates reported by TCP (TCPDSACKRecv at the sender, TCPDSACKOldSent at the receiver); "
        "programs on UDP that take a request for two"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"duplicate_percent": 10, "direction": "out"},
        {"duplicate_percent": 50, "correlation_percent": 25, "protocol": "udp", "ports": "53"},
    )

    duplicate_percent: Share = Field(default=10, description="share of the packets that arrive twice, in percent")
    correlation_percent: Correlation = 0

    def shape(self) -> Shape:
        return Shape(
            duplicate_percent=chance_for(self.duplicate_percent, self.correlation_percent),
            duplicate_correlation_percent=self.correlation_percent,
            seed=self.seed,
        )

    def hits(self, counted: LaneCounters) -> int:
        # Copies are counted by nobody: of all packets that left the lane they are p / (1 + p).
        return expected(counted, 100 * self.duplicate_percent / (100 + self.duplicate_percent))

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        out = (NETSTAT, "TcpExt TCPDSACKRecv", "duplicates that the far end reports")
        back = (NETSTAT, "TcpExt TCPDSACKOldSent", "duplicates that this node reports")
        return self.tcp_signs(*{"out": (out,), "in": (back,), "both": (out, back)}[self.direction])
