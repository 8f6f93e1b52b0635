"""The clocks of the simulated machine, and the one service that keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node_agent.host.clock import UNSYNCHRONISED, Instant, Keeper, Rate, Sync

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

KEEPER, TRIGGER = "chrony.service", "chrony-start.timer"
_OFFSET_NS = 1_800_000_000_000_000_000
_RATE, _SYNC = Rate(10_000, 3 << 16), Sync(0x2001, 1500, 300)


@dataclass
class SimClock:
    """What outlives the agent. `gained`: nanoseconds that the clock ran ahead of the hardware up to `since`."""

    offset: int = _OFFSET_NS
    rate: Rate = _RATE
    sync: Sync = _SYNC
    gained: float = 0.0
    since: float = 1000.0
    booted: float = 1000.0
    by_hand: bool = False
    """Somebody stepped the wall clock: what it should be only they know."""
    running: set[str] = field(default_factory=lambda: {KEEPER, TRIGGER})

    def ahead(self, clock: float) -> float:
        """Nanoseconds that the clocks have gained on the hardware's when that says `clock`."""
        return self.gained + (clock - self.since) * 1e9 * self.rate.ppm / 1e6

    def at_rest(self, clock: float) -> bool:
        """Whether the wall clock shows what it would show, had nobody done anything to it."""
        usual = SimClock()
        should = (clock - self.booted) * 1e9 * usual.rate.ppm / 1e6
        right = abs(self.offset + self.ahead(clock) - usual.offset - should) < 1_000_000
        trusted = right and self.sync.status == usual.sync.status
        return (self.by_hand or trusted) and (self.rate, self.running) == (usual.rate, usual.running)


class SimulatedClock:
    """`host.clock` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    @property
    def _clock(self) -> SimClock:
        self._h.alive()
        return self._h.kernel.time

    def now(self) -> Instant:
        raw = round(self._h.kernel.clock * 1e9)
        monotonic = raw + round(self._clock.ahead(self._h.kernel.clock))
        return Instant(monotonic + self._clock.offset, monotonic, monotonic, raw)

    def rate(self) -> Rate:
        return self._clock.rate

    def sync(self) -> Sync:
        return self._clock.sync

    def keepers(self) -> Sequence[Keeper]:
        return [Keeper(900, "chronyd", KEEPER)] if KEEPER in self._clock.running else []

    def triggers(self, units: Sequence[str]) -> Sequence[str]:
        return [TRIGGER] if KEEPER in units and TRIGGER in self._clock.running else []

    def active(self, units: Sequence[str]) -> Sequence[str]:
        return [unit for unit in units if unit in self._clock.running]

    def missing(self, units: Sequence[str]) -> Sequence[str]:
        return [unit for unit in units if unit not in self._clock.running]

    def shift(self, microseconds: int) -> None:
        self._h.change()
        self._clock.offset += microseconds * 1000
        self._clock.sync = Sync(self._clock.sync.status | UNSYNCHRONISED, 16_000_000, 16_000_000)

    def set_rate(self, rate: Rate) -> None:
        self._h.change()
        clock, now = self._clock, self._h.kernel.clock
        clock.gained, clock.since, clock.rate = clock.ahead(now), now, rate

    def set_sync(self, sync: Sync) -> None:
        self._h.change()
        self._clock.sync = sync

    def stop_units(self, units: Sequence[str]) -> None:
        for unit in units:
            self._h.change()
            self._clock.running.discard(unit)

    def start_units(self, units: Sequence[str]) -> None:
        for unit in units:
            self._h.change()
            self._clock.running.add(unit)

    def set_time(self, unix_s: float) -> None:
        """What date(1) does."""
        self._h.change()
        self._clock.offset = round(unix_s * 1e9) - self.now().boot
        self._clock.sync = Sync(self._clock.sync.status | UNSYNCHRONISED, 16_000_000, 16_000_000)
        self._clock.by_hand = True
