"""packet_delay: packets arrive late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.shape import Distribution, Shape

from .shaping import DelayMs, ShapedFault


class PacketDelay(ShapedFault):
    """Every packet takes so many milliseconds longer, in each direction that is chosen.

    With `jitter_ms` delays differ: evenly to both sides of `delay_ms` by so much, or with that standard deviation
    by a distribution of tc-netem(8). Packets that are closer together than that overtake one another.
    """

    name: ClassVar[str] = "packet_delay"
    summary: ClassVar[str] = "packets arrive late"
    operator_sees: ClassVar[str] = (
        "ping and the rtt of ss -ti rise by the delay, of both directions where both are chosen; throughput of a "
        "connection falls to its window over the round trip; nothing is lost and no counter moves"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"delay_ms": 80, "peers": ("10.77.0.1",), "direction": "out"},
        {"delay_ms": 100, "jitter_ms": 20, "distribution": "normal", "ports": "5432"},
    )

    delay_ms: DelayMs = Field(default=100, gt=0, description="what each packet takes longer, in milliseconds")
    # No correlation of delays: netem takes its correlated draw modulo the spread, so nothing of it is left
    # (sch_netem.c, tabledist; on 6.12 an autocorrelation of 0.02 was measured where 0.75 was asked for).
    jitter_ms: DelayMs = Field(default=0, description="how much that varies, in milliseconds")
    distribution: Distribution = Field(
        default="uniform", description="how: uniform to both sides, or normal, pareto, paretonormal"
    )

    @model_validator(mode="after")
    def _not_before_it_was_sent(self) -> PacketDelay:
        if self.jitter_ms > self.delay_ms:
            raise ValueError("jitter_ms is more than delay_ms: no packet arrives before it was sent")
        return self

    def shape(self) -> Shape:
        if not self.jitter_ms:
            return Shape(delay_ms=self.delay_ms)
        return Shape(
            delay_ms=self.delay_ms, jitter_ms=self.jitter_ms, distribution=self.distribution, seed=self.seed
        )
