"""fd_exhausted: open, socket and accept answer EMFILE or ENFILE, as when descriptors have run out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ebpf.placing import RuleFault, place
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.rules import Match


class FdExhausted(RuleFault, Fault):
    """One rule for open, socket and accept: they share its schedule, budget and counters.

    Pipes, eventfd, epoll and dup make descriptors that no security hook sees; they still succeed.
    """

    name: ClassVar[str] = "fd_exhausted"
    summary: ClassVar[str] = "opening files and making sockets answers EMFILE or ENFILE, for one unit or process"
    operator_sees: ClassVar[str] = (
        "Too many open files in the log of one program, while /proc/PID/fd shows few and its limit is far away"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"unit": "cron"}, {"cgroup": "/work", "errno": "ENFILE"})

    errno: Literal["EMFILE", "ENFILE"] = Field(
        default="EMFILE", description="EMFILE: the process has too many; ENFILE: the system has"
    )

    def locate(self, reader: Reader, facts: Facts) -> Target:
        target = place(
            reader, facts, operations=("open", "socket", "accept"), fault=self, seed=self.seed, match=Match(),
            what=f"getting a descriptor answers {self.errno}", errno=self.errno,
        )  # fmt: skip
        spared = ("pipe", "eventfd", "epoll_create", "dup", "memfd_create")
        return target.model_copy(update={"not_covered": (*target.not_covered, *spared)})
