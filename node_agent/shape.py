"""What a shape does to the packets that go through it, and what several do together. Pure.

The words are those of tc-netem(8) and tc-tbf(8). Packets are lost, delayed and so on one by one, as on a wire:
what the stack hands over as one large segment is cut first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Percent = Annotated[float, Field(ge=0, le=100)]
Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]

MAX_DELAY_MS = 60_000.0
MIN_PACKET, MAX_PACKET = 68, 65535


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bursts(_Value):
    """Losses in bursts, by the model of Gilbert and Elliott: `enter` and `leave` are the chances per packet to get
    into the bad state and out of it, `loss_bad` and `loss_good` the chance to be lost there. All in percent.

    tc-netem(8) calls them p, r, 1-h and 1-k. The mean burst has 100/leave packets.
    """

    enter_percent: Percent
    leave_percent: Percent
    loss_bad_percent: Percent = 100.0
    loss_good_percent: Percent = 0.0

    @property
    def mean_loss_percent(self) -> float:
        """The share of packets that is lost in the long run."""
        whole = self.enter_percent + self.leave_percent
        bad = self.enter_percent / whole if whole else 0.0
        return bad * self.loss_bad_percent + (1 - bad) * self.loss_good_percent


class Shape(_Value):
    """What happens to a packet; 0 and None stand for "not". Rates in kbit/s (1000 bits), sizes in bytes.

    `loss_percent`, `duplicate_percent`, `corrupt_percent`, `reorder_percent` are chances per packet, the
    correlations make a draw resemble the one before. `reorder_gap`: only every so many-th packet may overtake.
    `delay_ms` plus or minus `jitter_ms`, drawn from `distribution`. `queue_bytes`: what waits where a rate is
    short, 0 for a quarter of a second; `burst_bytes`: what passes at once, 0 for a sensible size. IP packets of
    more than `max_packet_bytes` vanish without a word.
    """

    loss_percent: Percent = 0.0
    loss_correlation_percent: Percent = 0.0
    bursts: Bursts | None = None
    delay_ms: float = Field(default=0.0, ge=0, le=MAX_DELAY_MS)
    jitter_ms: float = Field(default=0.0, ge=0, le=MAX_DELAY_MS)
    distribution: Distribution = "uniform"
    delay_correlation_percent: Percent = 0.0
    reorder_percent: Percent = 0.0
    reorder_correlation_percent: Percent = 0.0
    reorder_gap: int = Field(default=0, ge=0, le=1_000_000)
    duplicate_percent: Percent = 0.0
    duplicate_correlation_percent: Percent = 0.0
    corrupt_percent: Percent = 0.0
    corrupt_correlation_percent: Percent = 0.0
    rate_kbit: int = Field(default=0, ge=0, le=100_000_000)
    burst_bytes: int = Field(default=0, ge=0, le=2**30)
    queue_bytes: int = Field(default=0, ge=0, le=2**30)
    max_packet_bytes: int = Field(default=0, ge=0, le=MAX_PACKET)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Decides the draws, where the kernel takes a seed (capability net.netem_seed); None: the kernel's own."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Shape:
        if 0 < self.max_packet_bytes < MIN_PACKET:
            raise ValueError(f"max_packet_bytes: allowed: {MIN_PACKET} to {MAX_PACKET}")
        if self.reorder_percent and not self.delay_ms:
            raise ValueError("reorder_percent: a packet overtakes only those that are delayed: give delay_ms")
        if self.bursts and self.loss_percent:
            raise ValueError("bursts: give loss_percent or bursts, not both")
        return self
