"""packet_jitter: how long packets take varies from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.fault import Target
from node_agent.shape import Distribution, Shape
from node_agent.signs import Sign

from .shaping import NETSTAT, DelayMs, ShapedFault


class PacketJitter(ShapedFault):
    """Packets take longer by a time that is drawn for each, so that they also overtake one another.

    `uniform`: evenly from 0 to twice `jitter_ms`. Others have that standard deviation (tc-netem(8)), around
    `delay_ms`, and what would arrive before it was sent is not delayed.
    """

    name: ClassVar[str] = "packet_jitter"
    summary: ClassVar[str] = "the time that packets take varies from one to the next"
    operator_sees: ClassVar[str] = (
        "mdev of ping and rttvar of ss -ti rise; packets arrive out of order, so that TCP sends again what was "
        "not lost (TCPDSACKRecv of nstat); voice and video stutter"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"jitter_ms": 30, "direction": "out"},
        {"jitter_ms": 15, "delay_ms": 60, "distribution": "normal", "protocol": "udp"},
    )

    jitter_ms: DelayMs = Field(default=30, gt=0, description="how much the time varies, in milliseconds")
    delay_ms: DelayMs = Field(
        default=0, description="the time around which it varies, in milliseconds; 0: as much as jitter_ms"
    )
    distribution: Distribution = Field(
        default="uniform", description="how: uniform to both sides, or normal, pareto, paretonormal"
    )

    @model_validator(mode="after")
    def _not_before_it_was_sent(self) -> PacketJitter:
        if self.delay_ms and self.jitter_ms > self.delay_ms:
            raise ValueError("jitter_ms is more than delay_ms: no packet arrives before it was sent")
        return self

    def shape(self) -> Shape:
        return Shape(
            delay_ms=self.delay_ms or self.jitter_ms, jitter_ms=self.jitter_ms, distribution=self.distribution,
            seed=self.seed,
        )  # fmt: skip

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return self.tcp_signs((NETSTAT, "TcpExt TCPSACKReorder", "TCP segments seen to be out of order"))
