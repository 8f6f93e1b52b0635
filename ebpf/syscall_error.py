"""syscall_error: chosen system calls of chosen processes answer an errno."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ebpf.operations import FAMILIES
from ebpf.paths import path_match
from ebpf.placing import RuleFault, place
from ebpf.stracing import StraceTarget, strace_notes, strace_place, strace_proof, strace_steps
from node_agent.errnos import ErrnoName
from node_agent.errors import UnsupportedError
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.rules import Match
from node_agent.steps import Step


class SyscallError(RuleFault, Fault):
    """Any family of calls, or one call by name, answers an errno in place of having its effect.

    Hooks of the kernel's security modules first; the calls themselves where the kernel can override them; strace,
    slow and for running processes only, where neither reaches. The plan says which.
    """

    name: ClassVar[str] = "syscall_error"
    summary: ClassVar[str] = "chosen system calls of a unit, container or process answer an errno"
    operator_sees: ClassVar[str] = (
        "the program reports the errno; nothing in the kernel log, on the disk or on the network: strace of the "
        "program shows calls that fail without having been tried"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron", "operation": "open", "errno": "EMFILE"},
        {"cgroup": "/work", "operation": "send", "errno": "EPIPE", "schedule": "every:10"},
        {"cgroup": "/work", "operation": "pread64", "errno": "EIO", "schedule": "ratio:1/3"},
        {"cgroup": "/work", "operation": "fsync", "errno": "EIO", "backend": "strace"},
    )

    operation: str = Field(
        default="read", description=f"a system call by name, or a family: {', '.join(FAMILIES)}", max_length=64
    )
    errno: ErrnoName = Field(default="EIO", description="what the calls answer")
    path: str = Field(default="", description="only files of this path, or below it; * ? ** are wildcards")
    backend: Literal["auto", "security", "sockets", "override", "strace"] = Field(
        default="auto",
        description="hooks of security modules, or of sockets; override: the calls themselves; or strace",
    )

    def locate(self, reader: Reader, facts: Facts) -> Target:
        what = f"{self.operation} answers {self.errno}"
        if self.backend != "strace":
            match = path_match(reader, facts, self.path) if self.path else Match()
            try:
                return place(
                    reader, facts, operations=(self.operation,), fault=self, seed=self.seed, match=match,
                    what=what, errno=self.errno, only=self.backend,
                )  # fmt: skip
            except UnsupportedError:
                if self.backend != "auto" or self.path or not facts.can("strace"):
                    raise
        return strace_place(
            reader, facts, operation=self.operation, scope=self, schedule=self.schedule, budget=self.budget,
            what=what, error=self.errno,
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        return strace_steps(target, tag) if isinstance(target, StraceTarget) else super().steps(facts, target, tag)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return strace_notes(target) if isinstance(target, StraceTarget) else super().notes(facts, target)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        if isinstance(target, StraceTarget):
            return strace_proof(reader, tag)
        return super().evidence(reader, target, tag, log_mark)
