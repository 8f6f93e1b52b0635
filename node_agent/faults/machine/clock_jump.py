"""clock_jump: the wall clock of a node steps by seconds to years."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.clock_offset import ClockOffset

from .wall_clock import NOT_COVERED, SHARED, KeptClock, before_of, clock_evidence, find_clock, refuse_far

_MOST_S = 3650 * 86400.0
_LEAST_S = 0.1
_DAY_S = 86400.0


class ClockJump(Fault):
    """The wall clock steps once and goes on at its own rate; whoever keeps it in step is held off.

    Recovery takes the same step back: the time that has really gone by stays, and so does what somebody else did
    to the clock meanwhile. Who has corrected it, so that it is nearer to what it was than to where the fault put
    it, has ended the fault: then nothing is taken back.
    """

    name: ClassVar[str] = "clock_jump"
    summary: ClassVar[str] = "the wall clock steps by seconds to years; time sync is held off"
    operator_sees: ClassVar[str] = (
        "date and journal time stamps that jump, certificates and tokens that are not valid; uptime goes on"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"by_s": -86400})

    by_s: float = Field(
        default=300.0, ge=-_MOST_S, le=_MOST_S, description="seconds forward, or back where less than 0"
    )

    @field_validator("by_s")
    @classmethod
    def _far_enough(cls, value: float) -> float:
        if abs(value) < _LEAST_S:
            raise ValueError(f"nobody would notice; allowed: at least {_LEAST_S:g} s forward or back")
        return value

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("clock.adjust")

    def locate(self, reader: Reader, facts: Facts) -> KeptClock:
        refuse_far(reader, "by_s", self.by_s)
        return find_clock(reader)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, KeptClock)
        return (*target.holding_off(), self._jump(tag))

    def _jump(self, tag: str) -> ClockOffset:
        return ClockOffset(name=tag, by_us=round(self.by_s * 1e6))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        stranger = (
            "where this node's clock is outside the dates of labctl's certificate it refuses gRPC: "
            "labctl --transport ssh reaches it, and the lease ends anyway"
        )
        return PlanNotes(
            backend="clock-step",
            covers=("CLOCK_REALTIME of every process", "timers by the time of day: cron, systemd OnCalendar="),
            not_covered=("CLOCK_MONOTONIC, CLOCK_BOOTTIME and what waits by them", *NOT_COVERED),
            warnings=(SHARED, *((stranger,) if abs(self.by_s) > _DAY_S else ())),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        if target is not None and self.by_s > 0:
            return ()
        rotating = "Time jumped backwards, rotating"
        when = "after a step back, once something is written to the journal"
        return (in_log("systemd-journald begins a new file", rotating, when=when),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        before = before_of(reader, tag)
        if before is None:
            return Evidence(armed=False, hits=0, notes=("the clock was not stepped by this fault",))
        offset = reader.clock.now().offset
        moved = (offset - before.offset) / 1e9
        armed = self._jump(tag).stands(before, offset)
        other = abs(moved - self.by_s) > _LEAST_S / 2
        note = f"somebody else has set the clock: it is {moved:+.3f} s from where it was" if other else ""
        return clock_evidence(reader, armed, {"stepped_ms": round(moved * 1000)}, note)
