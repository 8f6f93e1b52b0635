"""packet_reorder: some packets overtake others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Target
from node_agent.lanes import LaneCounters
from node_agent.shape import Shape
from node_agent.signs import Sign

from .chances import chance_for
from .shaping import NETSTAT, Correlation, DelayMs, ShapedFault, Share, expected


class PacketReorder(ShapedFault):
    """So many per cent of the packets are sent at once and overtake the others, which take `delay_ms` longer.

    Only packets that are sent within `delay_ms` of one another can change places.
    """

    name: ClassVar[str] = "packet_reorder"
    summary: ClassVar[str] = "some packets overtake those before them"
    operator_sees: ClassVar[str] = (
        "duplicate acknowledgements and segments sent again although none was lost, reordering of ss -ti above 3, "
        "TCPSACKReorder of nstat; datagrams out of order"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"reorder_percent": 25, "delay_ms": 20, "direction": "out"},
        {"reorder_percent": 100, "gap_packets": 5, "protocol": "udp", "ports": "8000-8100"},
    )
    not_covered: ClassVar[tuple[str, ...]] = ("packets that are further apart than delay_ms",)

    reorder_percent: Share = Field(default=25, description="share of the packets that overtake, in percent")
    delay_ms: DelayMs = Field(default=50, gt=0, description="what the others take longer, in milliseconds")
    correlation_percent: Correlation = 0
    gap_packets: int = Field(
        default=0, ge=0, le=1_000_000, description="only every so many-th packet may overtake; 0: any"
    )

    def shape(self) -> Shape:
        return Shape(
            delay_ms=self.delay_ms,
            reorder_percent=chance_for(self.reorder_percent, self.correlation_percent),
            reorder_correlation_percent=self.correlation_percent,
            reorder_gap=self.gap_packets,
            seed=self.seed,
        )

    def hits(self, counted: LaneCounters) -> int:
        return expected(counted, self.reorder_percent / max(1, self.gap_packets))

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return self.tcp_signs((NETSTAT, "TcpExt TCPSACKReorder", "TCP segments seen to be out of order"))
