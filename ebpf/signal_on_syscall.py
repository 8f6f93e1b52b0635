"""signal_on_syscall: a signal arrives at chosen system calls."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from ebpf.operations import FAMILIES
from ebpf.paths import path_match
from ebpf.placing import RuleFault, place
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.rules import Match
from node_agent.schedule import Schedule, ScheduleValue

_NAMES = tuple(s.name for s in signals.Signals if s.value < 32)


class SignalOnSyscall(RuleFault, Fault):
    """The kernel sends the caller a signal where the call begins; the call goes on, or is interrupted by it."""

    name: ClassVar[str] = "signal_on_syscall"
    summary: ClassVar[str] = "a signal arrives at the n-th call of a unit or process"
    operator_sees: ClassVar[str] = (
        "the program ends or acts on a signal that nobody seems to have sent: si_code says SI_KERNEL"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron", "operation": "write", "schedule": "every:100"},
        {"cgroup": "/work", "operation": "connect", "signal": "SIGABRT", "budget": 1},
    )

    operation: str = Field(
        default="read", description=f"a system call by name, or a family: {', '.join(FAMILIES)}", max_length=64
    )
    signal: str = Field(default="SIGKILL", description="which signal: SIGKILL, SIGSEGV, …")
    path: str = Field(default="", description="only at files of this path, or below it; * ? ** are wildcards")
    schedule: Schedule = Field(default=ScheduleValue(kind="every", a=1000), description="at which of the calls")

    @field_validator("signal")
    @classmethod
    def _known(cls, value: str) -> str:
        name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
        if name not in _NAMES:
            raise ValueError(f"{value!r} is not a signal; one of {', '.join(_NAMES)}")
        return name

    def locate(self, reader: Reader, facts: Facts) -> Target:
        return place(
            reader, facts, operations=(self.operation,), fault=self, seed=self.seed,
            match=path_match(reader, facts, self.path) if self.path else Match(),
            what=f"{self.signal} at {self.operation}", signal=signals.Signals[self.signal].value,
        )  # fmt: skip
