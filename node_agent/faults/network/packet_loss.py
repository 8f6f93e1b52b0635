"""packet_loss: packets get lost, each for itself or in bursts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.fault import Target
from node_agent.lanes import LaneCounters
from node_agent.shape import Shape
from node_agent.signs import Sign

from .chances import bursts_of, chance_for
from .shaping import SNMP, Correlation, ShapedFault, Share


class PacketLoss(ShapedFault):
    """So many per cent of the packets never arrive, in the long run, whatever the correlation.

    With `burst_packets` they are lost in bursts whose lengths are geometric with that mean (the model of Gilbert
    and Elliott: in the bad state everything is lost, in the good one nothing). Both directions are two draws:
    what has to go there and back is lost more often than a packet. The sender sees silence, no error.
    """

    name: ClassVar[str] = "packet_loss"
    summary: ClassVar[str] = "packets get lost, at random or in bursts"
    operator_sees: ClassVar[str] = (
        "TCP segments sent again (nstat, ss -ti), throughput that falls far below the rate of the link, pauses of "
        "200 ms and more in single answers, datagrams that never arrive; no error counter of the interface moves"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"loss_percent": 10, "peers": ("10.77.0.1",), "ports": "5432", "protocol": "tcp"},
        {"loss_percent": 20, "burst_packets": 5, "direction": "in"},
    )
    not_covered: ClassVar[tuple[str, ...]] = ("packets between programs of this node",)

    loss_percent: Share = Field(default=10, description="share of the packets that is lost, in percent")
    correlation_percent: Correlation = 0
    burst_packets: float = Field(
        default=0, ge=0, le=10_000, description="mean length of a burst of losses, in packets; 0: each for itself"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> PacketLoss:
        if self.burst_packets and self.correlation_percent:
            raise ValueError("burst_packets and correlation_percent exclude each other; give one")
        if 0 < self.burst_packets < 1:
            raise ValueError("burst_packets: a burst has at least 1 packet")
        if self.burst_packets:
            bursts_of(self.loss_percent, self.burst_packets)
        return self

    def shape(self) -> Shape:
        if self.burst_packets:
            return Shape(bursts=bursts_of(self.loss_percent, self.burst_packets), seed=self.seed)
        return Shape(
            loss_percent=chance_for(self.loss_percent, self.correlation_percent),
            loss_correlation_percent=self.correlation_percent,
            seed=self.seed,
        )

    def hits(self, counted: LaneCounters) -> int:
        return counted.dropped

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return self.tcp_signs((SNMP, "Tcp RetransSegs", "TCP segments sent again"))
