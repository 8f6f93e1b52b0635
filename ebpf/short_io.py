"""short_io: reads or writes of running processes transfer fewer bytes than asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ebpf.runners.protocol import parse_report, script
from ebpf.shortening import (
    BACKEND,
    CALLS,
    DATAGRAMS,
    LOADER,
    LOADER_BYTES,
    NO_PROGRESS,
    NOT_COVERED,
    STARTED,
    STARTED_BY_OTHERS,
    UNALIGNED,
    WARNINGS,
)
from ebpf.stracing import processes_of
from node_agent.errors import Refusal
from node_agent.fault import TAG_PREFIX, Evidence, Facts, Fault, Hit, Missing, PlanNotes, Target
from node_agent.host import HelperFailed, Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.rules import Scope
from node_agent.schedule import Schedule, ScheduleValue
from node_agent.scopes import ScopeFields, find_scope
from node_agent.steps import Step
from node_agent.steps.helper_process import Claim, HelperProcess

_MOST = 0x7FFFF000
"""No call transfers more: read(2)."""


def _argv() -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", script("ptrace_runner"))


@capability("ptrace", remedy="a 64-bit x86 kernel from 5.3 on, and no security module that forbids root to trace")
def probe_ptrace(host: Host) -> None:
    """A child of the helper reads a pipe, and the helper shortens that."""
    name = f"{TAG_PREFIX}probe-ptrace"
    try:
        host.helpers.start(name, _argv(), payload=json.dumps({"probe": True}), ready="ready", ready_s=30)
    except HelperFailed as failed:
        raise Lacking(failed.told()) from failed
    finally:
        host.helpers.stop(name)


class TracedProcesses(Target):
    """Processes that run now."""

    scope: Scope
    pids: tuple[int, ...]

    def describe(self) -> str:
        return f"transfers of {self.scope.name}, {len(self.pids)} processes"


class ShortIo(ScopeFields, Fault):
    """The kernel itself does the smaller transfer and answers for it: offsets, pipes and connections stay right.

    Nothing in the kernel can change what a call was asked for, so the processes are traced: ptrace lowers the
    count at the entry of a call and puts the register back at its end. With `max_bytes` 0 reads answer 0, the end
    of the file. Calls that ask for `max_bytes` or less are left alone and do not count for the schedule.
    """

    name: ClassVar[str] = "short_io"
    summary: ClassVar[str] = "reads or writes of a unit or process transfer fewer bytes than asked, and succeed"
    operator_sees: ClassVar[str] = (
        "no error anywhere: truncated records, broken messages, or more and smaller calls, in a program that does "
        "not go on where a short transfer ended; the process is traced (TracerPid)"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"cgroup": "/work", "operation": "read", "max_bytes": 100, "schedule": "ratio:1/3"},
        {"cgroup": "/work", "operation": "write", "max_bytes": 1, "kind": "socket"},
        {"cgroup": "/work", "operation": "read", "max_bytes": 0, "schedule": "probability:0.01", "seed": 7},
    )

    operation: Literal["read", "write", "any"] = Field(
        default="read",
        description="; ".join(f"{name}: {', '.join(calls)}" for name, calls in CALLS.items()) + "; any: both",
    )
    max_bytes: int = Field(
        default=512, ge=0, le=_MOST, description="most bytes that a call transfers; 0: none, it answers 0"
    )
    kind: Literal["regular", "pipe", "socket", "any"] = Field(
        default="any", description="only such files; any: those three and devices, never eventfd, timerfd, inotify"
    )
    schedule: Schedule = Field(default=ScheduleValue(), description="which of the calls that ask for more")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing(BACKEND)

    def locate(self, reader: Reader, facts: Facts) -> TracedProcesses:
        scope = find_scope(reader, facts, self)
        pids = processes_of(reader, facts, scope)
        if not pids:
            raise Refusal(
                f"{scope.name} has no processes, and ptrace needs some to attach to", field=scope.kind,
                allowed="a scope that runs",
            )  # fmt: skip
        return TracedProcesses(scope=scope, pids=pids)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, TracedProcesses)
        when, scope = self.schedule, target.scope
        payload = {
            "pids": target.pids, "started": scope.started, "tree": scope.kind == "tree",
            "follow": scope.kind != "process", "operation": self.operation, "max_bytes": self.max_bytes,
            "kind": self.kind, "schedule": (when.kind, when.a, when.b), "seed": self.seed,
        }  # fmt: skip
        return (
            HelperProcess(
                name=_helper(tag),
                title=f"{self.operation} of {scope.name} transfers {self.max_bytes} bytes at most",
                argv=_argv(),
                payload=json.dumps(payload),
                claims=tuple(Claim(kind="cgroup", name=f"tracer of process {pid}") for pid in target.pids),
            ),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, TracedProcesses)
        wanted = CALLS if self.operation == "any" else (self.operation,)
        warnings = list(WARNINGS)
        warnings += [DATAGRAMS] if self.kind in ("socket", "any") else []
        loads = self.operation != "write" and self.kind in ("regular", "any")
        warnings += [LOADER] if loads and self.max_bytes < LOADER_BYTES else []
        warnings += [UNALIGNED] if self.kind in ("regular", "any") and self.max_bytes else []
        warnings += [NO_PROGRESS] if self.operation != "read" and not self.max_bytes else []
        return PlanNotes(
            backend=BACKEND, covers=tuple(call for name in wanted for call in CALLS[name]),
            not_covered=(*NOT_COVERED, STARTED if target.scope.kind == "process" else STARTED_BY_OTHERS),
            warnings=tuple(warnings),
        )  # fmt: skip

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        """Armed while there is a process to trace. Hits: calls that transferred all that they were let."""
        try:
            report = parse_report(reader.helpers.ask(_helper(tag), "report"))
        except OSError as error:
            return Evidence(armed=False, hits=0, notes=(f"the tracer is gone: {error.strerror}",))
        counters = dict(report["counters"])
        return Evidence(
            armed=report["attached"] > 0, hits=counters.pop("hits", 0), counters=counters, notes=report["notes"],
            samples=tuple(Hit.model_validate(one) for one in report["samples"]),
        )  # fmt: skip


def _helper(tag: str) -> str:
    return f"{tag}-ptrace"
