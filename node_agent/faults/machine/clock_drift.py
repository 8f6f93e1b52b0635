"""clock_drift: the clock of a node runs fast or slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.clock_rate import ClockRate

from .wall_clock import NOT_COVERED, SHARED, KeptClock, before_of, clock_evidence, find_clock

_MOST_PPM = 100_000.0
_USUAL_PPM = 10_000.0
_PPM_OF_S_PER_HOUR = 1e6 / 3600


class ClockDrift(Fault):
    """The kernel's clock goes at another rate, as with a bad oscillator; whoever keeps it in step is held off.

    Say `ppm` or `s_per_hour`; neither means 10000 ppm, 36 s an hour. All clocks of the kernel but the raw one go
    wrong together, and with them every timer. Recovery restores the rate and steps the wall clock back by what it
    has gained; the monotonic clock cannot be stepped and keeps it. Leases are counted by the raw clock.
    """

    name: ClassVar[str] = "clock_drift"
    summary: ClassVar[str] = "the clock runs fast or slow; time sync is held off"
    operator_sees: ClassVar[str] = (
        "date drifts away from other nodes, timeouts are too short or too long; adjtimex shows a strange tick"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"s_per_hour": -2.5})

    ppm: float = Field(
        default=0.0, ge=-_MOST_PPM, le=_MOST_PPM, description="millionths too fast; less than 0: too slow"
    )
    s_per_hour: float = Field(
        default=0.0, ge=-360, le=360, description="the same in seconds an hour, instead of ppm"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> ClockDrift:
        if self.ppm and self.s_per_hour:
            raise ValueError("ppm and s_per_hour exclude each other")
        if abs(self.drift_ppm) < 1:
            raise ValueError("nobody would notice; allowed: at least 1 ppm fast or slow")
        return self

    @property
    def drift_ppm(self) -> float:
        """The rate in ppm, whichever way it was said."""
        return self.ppm or self.s_per_hour * _PPM_OF_S_PER_HOUR or _USUAL_PPM

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("clock.adjust")

    def locate(self, reader: Reader, facts: Facts) -> KeptClock:
        target = find_clock(reader)
        try:
            target.rate.faster(self.drift_ppm)
        except ValueError as error:
            field = "s_per_hour" if self.s_per_hour else "ppm"
            raise Refusal(
                f"{field}: {error}", field=field, allowed=f"less than {_MOST_PPM - abs(target.rate.ppm):.0f} ppm"
            ) from None
        return target

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, KeptClock)
        return (*target.holding_off(), self._drift(tag))

    def _drift(self, tag: str) -> ClockRate:
        return ClockRate(name=tag, ppm=self.drift_ppm)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="adjtimex",
            covers=("CLOCK_REALTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME of every process, and all timers",),
            not_covered=("CLOCK_MONOTONIC_RAW", *NOT_COVERED),
            warnings=(
                SHARED,
                "the monotonic clock keeps what it gained until the node boots",
                "the lease is counted in true time; limits that the kernel keeps for other faults drift as well",
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        before = before_of(reader, tag)
        if before is None:
            return Evidence(armed=False, hits=0, notes=("the clock does not drift by this fault",))
        step, now, rate = self._drift(tag), reader.clock.now(), reader.clock.rate()
        armed, gained = step.stands(reader, before), before.gained(now)
        wrong = step.still_wrong_by(before, now.offset, gained)
        counters = {"gained_ms": round(gained / 1e6), "rate_ppm": round(rate.ppm - before.rate.ppm)}
        note = "" if armed else f"somebody else has set the rate: tick {rate.tick_us}, freq {rate.freq}"
        if wrong != gained:
            note = f"somebody has corrected the clock: {wrong / 1e9:+.3f} s are left"
        return clock_evidence(reader, armed, counters, note)
