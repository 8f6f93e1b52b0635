"""When requests come: an open loop, so that a slow service gets no fewer of them. Pure.

Arrivals are a Poisson process whose rate rises and falls, drawn by thinning (Lewis and Shedler 1979). A closed
loop would wait for answers and hide exactly the outage that it is to measure (coordinated omission).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field


class Tide(BaseModel):
    """A rate that swings about its mean: `rate_per_s` times 1 plus or minus `swing` over `cycle_s` seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate_per_s: float = Field(gt=0, le=10_000)
    swing: float = Field(default=0.5, ge=0, lt=1)
    cycle_s: float = Field(default=60.0, gt=0)

    def at(self, seconds: float) -> float:
        """Requests a second at that moment; a cycle begins at the mean and goes to the peak first."""
        return self.rate_per_s * (1 + self.swing * math.sin(2 * math.pi * seconds / self.cycle_s))


def arrivals(tide: Tide, seed: int) -> Iterator[float]:
    """Moments in seconds from the start, rising, without end. The same seed gives the same moments."""
    rng = random.Random(seed)  # noqa: S311 - a schedule, no secret
    peak = tide.rate_per_s * (1 + tide.swing)
    now = 0.0
    while True:
        now += rng.expovariate(peak)
        if rng.random() * peak < tide.at(now):
            yield now
