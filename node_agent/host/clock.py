"""The clocks of the machine: what faults of time see of them, and what they may change.

The wall clock (CLOCK_REALTIME) is the boot clock and an offset, which only a step changes. Both go at the rate
that adjtimex(2) sets; the raw clock (CLOCK_MONOTONIC_RAW) goes at the rate of the hardware, whatever anybody sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

UNSYNCHRONISED = 0x40
"""STA_UNSYNC of <linux/timex.h>. While it is not set, the kernel copies the time to the RTC every 11 minutes."""

TICK_US = 10_000
"""What a clock that nobody hurries has for `tick_us`: USER_HZ is 100."""

TICK_BOUNDS_US = (9_000, 11_000)
FREQ_BOUND = 500 << 16
"""What the kernel takes: Documentation of adjtimex(2), kernel/time/ntp.c."""


@dataclass(frozen=True)
class Rate:
    """How fast the clocks go: microseconds a tick of 10 ms adds, and a correction in 1/65536 ppm."""

    tick_us: int
    freq: int

    @property
    def ppm(self) -> float:
        """By how much faster than the hardware's."""
        return (self.tick_us - TICK_US) * 100 + self.freq / 65536

    def faster(self, ppm: float) -> Rate:
        """This rate and so much more. Raises ValueError where the kernel would not take it."""
        total = self.ppm + ppm
        low, high = TICK_BOUNDS_US
        tick = min(max(TICK_US + round(total / 100), low), high)
        freq = round((total - (tick - TICK_US) * 100) * 65536)
        if abs(freq) > FREQ_BOUND:
            raise ValueError(f"{total:+.0f} ppm is more than the kernel's clock can do")
        return Rate(tick, freq)

    def like(self, other: Rate) -> bool:
        """Whether it is the same, but for what the kernel rounds."""
        return self.tick_us == other.tick_us and abs(self.freq - other.freq) <= 2


@dataclass(frozen=True)
class Sync:
    """What the kernel believes of its time: STA_… bits, and the errors in microseconds."""

    status: int
    max_error_us: int
    error_us: int

    @property
    def synchronised(self) -> bool:
        """Whether somebody vouches for the time."""
        return not self.status & UNSYNCHRONISED


@dataclass(frozen=True)
class Instant:
    """All clocks at one moment, in nanoseconds."""

    wall: int
    boot: int
    monotonic: int
    raw: int

    @property
    def offset(self) -> int:
        """How far the wall clock is ahead of the boot clock. Changes only when somebody steps the clock."""
        return self.wall - self.boot


@dataclass(frozen=True)
class Keeper:
    """A process that may set the clock. `unit` is its systemd service; empty: none that could be started again."""

    pid: int
    name: str
    unit: str


class ClockReader(Protocol):
    """Looking."""

    def now(self) -> Instant: ...
    def rate(self) -> Rate: ...
    def sync(self) -> Sync: ...
    def keepers(self) -> Sequence[Keeper]:
        """The processes that keep the clock in step with others."""

    def triggers(self, units: Sequence[str]) -> Sequence[str]:
        """The active sockets, timers and paths that would start these services."""

    def active(self, units: Sequence[str]) -> Sequence[str]:
        """Those of these units that run; of one that is not installed any more nobody expects it."""

    def missing(self, units: Sequence[str]) -> Sequence[str]:
        """Those that are installed and do not run."""


class Clock(ClockReader, Protocol):
    """Changing."""

    def shift(self, microseconds: int) -> None:
        """Step the wall clock by so much, at once and exactly, whatever it shows."""

    def set_rate(self, rate: Rate) -> None: ...
    def set_sync(self, sync: Sync) -> None: ...
    def stop_units(self, units: Sequence[str]) -> None:
        """Stop units and wait. Raises CommandError where one does not stop."""

    def start_units(self, units: Sequence[str]) -> None:
        """Start units and wait. Raises OSError naming those that do not start."""
