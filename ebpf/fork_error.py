"""fork_error: making processes or threads, or executing programs, answers an errno."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ebpf.placing import RuleFault, place
from node_agent.errnos import ErrnoName
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.rules import Kind, Match

_MADE: Mapping[str, tuple[Kind, ...]] = {"process": ("process",), "thread": ("thread",)}


class ForkError(RuleFault, Fault):
    """fork, vfork, clone and clone3 answer an errno, for processes, threads or both; or execve does."""

    name: ClassVar[str] = "fork_error"
    summary: ClassVar[str] = "a unit or process cannot make new processes or threads, or execute programs"
    operator_sees: ClassVar[str] = (
        "fork: Resource temporarily unavailable, while pids.current and pid_max leave plenty of room"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron"},
        {"cgroup": "/work", "what": "exec", "errno": "EACCES"},
    )

    what: Literal["process", "thread", "any", "exec"] = Field(
        default="any", description="what cannot be made; any: processes and threads; exec: executing a program"
    )
    errno: ErrnoName = Field(default="EAGAIN", description="what the call answers")

    def locate(self, reader: Reader, facts: Facts) -> Target:
        return place(
            reader, facts, operations=("exec" if self.what == "exec" else "fork",), fault=self, seed=self.seed,
            match=Match(kinds=_MADE.get(self.what, ())),
            what=f"making a {self.what} answers {self.errno}", errno=self.errno,
        )  # fmt: skip
