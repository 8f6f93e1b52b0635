"""How a link flaps: the order to the process that switches it, and its times."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from node_agent.steps.link_state import LinkState


class Flapping(BaseModel):
    """What :mod:`node_agent.flapper` is told. Times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: LinkState
    down_s: float
    up_s: float
    jitter_percent: int = 0
    seed: int = 0

    def phases(self) -> Iterator[tuple[bool, float]]:
        """Down and up in turn, without an end: whether it is up, and for how long."""
        dice = random.Random(self.seed)  # noqa: S311  (times that can be had again)
        while True:
            for up, usual in ((False, self.down_s), (True, self.up_s)):
                yield up, usual * (1 + dice.uniform(-1, 1) * self.jitter_percent / 100)
