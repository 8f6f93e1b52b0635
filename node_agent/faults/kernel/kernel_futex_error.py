"""kernel_futex_error: futex calls of a process fail. Facility: fail_futex."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import capability
from node_agent.steps import Step

from .kernel_facility import (
    REMEDY,
    Interval,
    Percent,
    Pid,
    Times,
    Unit,
    facility_evidence,
    facility_steps,
    try_facility,
    victims_of,
)
from .victims import Victims, find_victims, process_notes

_FACILITY = "fail_futex"


class KernelFutexError(Fault):
    """The futex calls of a process, on which mutexes and condition variables wait, are answered with EFAULT.

    The kernel's own facility fail_futex, with its task filter. A lock that nobody contends makes no call.
    """

    name: ClassVar[str] = "kernel_futex_error"
    summary: ClassVar[str] = "futex calls of a process fail"
    operator_sees: ClassVar[str] = (
        "a program that aborts with 'The futex facility returned an unexpected error code', or locks that spin"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"pid": 700},
        {"unit": "victim", "shared_only": True},
    )

    pid: Pid = 0
    unit: Unit = ""
    probability_percent: Percent = 10
    interval: Interval = 1
    times: Times = 0
    shared_only: bool = Field(default=False, description="only futexes that processes share")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("kernel.fail_futex")

    def locate(self, reader: Reader, facts: Facts) -> Victims:
        return find_victims(reader, self.pid, self.unit)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Victims)
        own = (("ignore-private", "Y" if self.shared_only else "N", "N"),)
        return facility_steps(_FACILITY, self, tag, target.flags(), by_task=True, own=own)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return process_notes(_FACILITY, ("futex", "futex_waitv", "futex_wait", "futex_wake", "futex_requeue"))

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return facility_evidence(reader, _FACILITY, self, log_mark, victims_of(reader))


@capability("kernel.fail_futex", remedy=REMEDY)
def probe(host: Host) -> None:
    """A dial of fail_futex can be turned."""
    try_facility(host, _FACILITY)
