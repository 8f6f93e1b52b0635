"""kernel_function_error: a function of the kernel answers an error to a process. Facility: fail_function."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from node_agent import errnos
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import capability
from node_agent.steps import Step
from node_agent.steps.failing_function import FailingFunction

from .kernel_facility import (
    DEBUGFS,
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

_FACILITY = "fail_function"
INJECTABLE = f"{DEBUGFS}/error_injection/list"


class FunctionVictims(Victims):
    """Processes, and what the function answers them."""

    answer: int


class KernelFunctionError(Fault):
    """A function that the kernel allows to fail is not carried out for a process, and answers an error instead.

    The kernel's own facility fail_function, with its task filter. The functions are those of
    /sys/kernel/debug/error_injection/list, system calls (`__x64_sys_NAME`) among them. A function whose failure is
    a null pointer or `true` answers that, whatever `errno` says.
    """

    name: ClassVar[str] = "kernel_function_error"
    summary: ClassVar[str] = "a function of the kernel answers an error to a process"
    operator_sees: ClassVar[str] = "the errno, from each call that leads to the function"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"pid": 700},
        {"unit": "victim", "function": "should_fail_alloc_page", "probability_percent": 50},
    )

    pid: Pid = 0
    unit: Unit = ""
    function: str = Field(
        default="__x64_sys_fsync", pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", description="which function of the kernel"
    )
    errno: str = Field(default="EIO", description="what it answers, by name or number")
    probability_percent: Percent = 100
    interval: Interval = 1
    times: Times = 0

    @field_validator("errno")
    @classmethod
    def _errno_is_one(cls, value: str) -> str:
        return errnos.name(errnos.number(value))

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("kernel.fail_function")

    def locate(self, reader: Reader, facts: Facts) -> FunctionVictims:
        kinds = dict(
            line.split()[:2] for line in reader.read_text(INJECTABLE).splitlines() if len(line.split()) >= 2
        )
        if self.function not in kinds:
            near = difflib.get_close_matches(self.function, kinds, n=3, cutoff=0.5)
            raise Refusal(
                f"function: the kernel does not let {self.function} fail",
                field="function",
                allowed=f"one of {INJECTABLE}" + (f", such as {', '.join(near)}" if near else ""),
            )
        found = find_victims(reader, self.pid, self.unit)
        answer = {"NULL": 0, "TRUE": 1}.get(kinds[self.function], -errnos.number(self.errno))
        return FunctionVictims(
            processes=found.processes, what=f"{self.function} called by {found.what}", answer=answer
        )

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, FunctionVictims)
        mark, *others = facility_steps(_FACILITY, self, tag, target.flags(), by_task=True)
        return (mark, FailingFunction(function=self.function, answer=target.answer), *others)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, FunctionVictims)
        return process_notes(
            _FACILITY,
            (f"{self.function}, which answers {target.answer}",),
            "every caller of the function, victim or not, passes a probe while this is in force",
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return facility_evidence(reader, _FACILITY, self, log_mark, victims_of(reader))


@capability("kernel.fail_function", remedy=REMEDY)
def probe(host: Host) -> None:
    """A dial of fail_function can be turned."""
    try_facility(host, _FACILITY)
