"""syscall_delay: chosen system calls of running processes take longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from ebpf.operations import FAMILIES
from ebpf.stracing import StraceTarget, strace_notes, strace_place, strace_proof, strace_steps
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.schedule import Schedule, ScheduleValue
from node_agent.scopes import ScopeFields
from node_agent.steps import Step


class SyscallDelay(ScopeFields, Fault):
    """Calls begin late, by strace: a program in the kernel must not sleep, and spinning would burn the processor.

    The wait is in the target's own thread, before the call; other threads go on.
    """

    name: ClassVar[str] = "syscall_delay"
    summary: ClassVar[str] = "chosen system calls of a unit or process take longer"
    operator_sees: ClassVar[str] = (
        "requests get slow with idle disks and network; the process is traced (TracerPid)"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"cgroup": "/work", "operation": "fsync", "delay_ms": 25},
        {"cgroup": "/work", "operation": "connect", "delay_ms": 500, "schedule": "every:3"},
    )

    operation: str = Field(
        default="fsync", description=f"a system call by name, or a family: {', '.join(FAMILIES)}", max_length=64
    )
    delay_ms: float = Field(default=100, gt=0, le=60_000, description="how long each call waits before it begins")
    schedule: Schedule = Field(default=ScheduleValue(), description="which of the calls")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("strace")

    def locate(self, reader: Reader, facts: Facts) -> Target:
        return strace_place(
            reader, facts, operation=self.operation, scope=self, schedule=self.schedule, budget=0,
            what=f"{self.operation} waits {self.delay_ms:g} ms", delay_us=round(self.delay_ms * 1000),
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, StraceTarget)
        return strace_steps(target, tag)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, StraceTarget)
        return strace_notes(target)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return strace_proof(reader, tag)
