"""process_pause: a unit, control group, container, process or tree stands still."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.errors import Refusal
from node_agent.fault import TAG_PREFIX, Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.members import field_of, find, folders_of, members_of, refuse_ours, refuse_protected
from node_agent.rules import Scope
from node_agent.scopes import ScopeFields, find_scope
from node_agent.steps import Step
from node_agent.steps.freeze_groups import FROZEN, RUNNING, FreezeGroups
from node_agent.steps.helper_process import HelperProcess
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.stop_processes import StopProcesses
from node_agent.steps.task_flags import Process
from node_agent.stressors import READY_S, command

from .helping import counters_of, stat_of, text_of, unit_names

_STOPPED = ("T", "t")
_LEAST_S = 0.1
_SERVICE, _SLICE = (".service", ".socket", ".mount", ".swap"), ".slice"
_AWAITED = "systemd-journal"
"""Whoever logs waits for it once its sockets are full, sshd and the agent among them: nobody could end this."""

_ASKED_AT_LOGIN = ("dbus-daemon", "dbus-broker", "systemd-logind")


class Paused(Target):
    """Control groups, or processes. `watchdogs` are units that systemd ends when they do not answer in time."""

    scope: Scope
    folders: tuple[str, ...]
    processes: tuple[Process, ...]
    watchdogs: tuple[str, ...] = ()
    slows_logins: bool = False

    @property
    def services(self) -> tuple[str, ...]:
        """Control groups that systemd starts processes in."""
        return tuple(folder for folder in self.folders if folder.endswith(_SERVICE))

    @property
    def plain(self) -> tuple[str, ...]:
        """Those that it does not: containers, sessions, and what others have made."""
        return tuple(folder for folder in self.folders if not folder.endswith(_SERVICE))

    def frozen(self, tag: str) -> tuple[str, ...]:
        """The control groups that are frozen."""
        return (*self.plain, *(f"{folder}/{tag}" for folder in self.services))

    def describe(self) -> str:
        count = len(self.processes)
        return f"{self.scope.name}, {count} process{'' if count == 1 else 'es'} now"


class ProcessPause(ScopeFields, Fault):
    """Nothing of it runs any more: not a thread, no answer, while connections and locks stay.

    A unit, control group or container is frozen by the kernel (cgroup.freeze): nobody in it sees a signal, and a
    process that comes to it stands still, too. A restart makes the control group anew; that one is frozen within
    0.2 s. A process, or a tree, is stopped by SIGSTOP, as by an operator's mistake; a new one is not.
    """

    name: ClassVar[str] = "process_pause"
    summary: ClassVar[str] = "a unit, container, process or tree stands still"
    operator_sees: ClassVar[str] = (
        "a service that is active and does not answer: connections are accepted by the kernel and time out, its "
        "CPU time stands still, and stopping it takes until systemd kills it; no log line says why"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"unit": "cron"}, {"tree": 700, "pause_s": 2, "run_s": 3})

    pause_s: float = Field(
        default=0, ge=0, le=3600, description="stand still so long, in turn with run_s; 0: always"
    )
    run_s: float = Field(default=0, ge=0, le=3600, description="run so long, in turn with pause_s")

    @model_validator(mode="after")
    def _both_or_none(self) -> ProcessPause:
        if bool(self.pause_s) != bool(self.run_s) or 0 < min(self.pause_s, self.run_s) < _LEAST_S:
            raise ValueError(f"pause_s and run_s: both from {_LEAST_S:g} on, or neither")
        return self

    def locate(self, reader: Reader, facts: Facts) -> Paused:
        field = field_of(self)
        scope = find_scope(reader, facts, self)
        refuse_ours(field, scope)
        members = members_of(reader, facts, scope)
        if not members:
            raise Refusal(f"{field}: {scope.name} has no processes", field=field, allowed="a scope that runs")
        refuse_protected(reader, field, members)
        comms = {p.comm for p in members}
        if _AWAITED in comms:
            text = f"{field}: {scope.name} has the system's journal, which sshd and the agent write to"
            raise Refusal(text, field=field, allowed="a scope without systemd-journald")
        for folder in folders_of(facts, scope):
            _refuse_nested(reader, field, folder)
        states = (reader.services.state(unit) for unit in unit_names(scope))
        watched = tuple(s.unit for s in states if s.watchdog not in ("", "0", "infinity"))
        processes = tuple(Process(pid=p.pid, started=p.started) for p in members)
        return Paused(
            scope=scope, folders=folders_of(facts, scope), processes=processes, watchdogs=watched,
            slows_logins=bool(comms & set(_ASKED_AT_LOGIN)),
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Paused)
        scope = target.scope
        still: Step
        if target.folders:
            still = freeze = FreezeGroups(name=tag, folders=target.plain, inside=target.services)
        else:
            still = StopProcesses(pid=scope.pid, started=scope.started, tree=scope.kind == "tree")
        if not target.folders and not self.run_s:
            return (MarkFile(name=tag, text=f"{scope.name} is paused"), still)
        groups = freeze.groups if target.folders else ()
        payload: dict[str, Any] = {
            "values": {f"{group}/cgroup.freeze": FROZEN for group in groups},
            "inside": [(folder, f"{folder}/{tag}") for folder in target.services], "rest": RUNNING,
            "pause_s": self.pause_s, "run_s": self.run_s,
        }  # fmt: skip
        if not target.folders:
            payload["stop"] = [(p.pid, p.started) for p in target.processes]
        helper = HelperProcess(
            name=tag, title="keep it paused" + (" in turns" if self.run_s else ""),
            argv=command("keeper"), payload=json.dumps(payload), ready_s=READY_S,
        )  # fmt: skip
        return (still, helper)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Paused)
        grouped = bool(target.folders)
        left_out = ["what the kernel does for it: connections are still accepted, packets acknowledged"]
        if not grouped:
            left_out.append("processes that are started later; the parent is told that its child has stopped")
        if grouped and self.run_s:
            left_out.append("a process that sleeps uninterruptibly stands still only when it wakes")
        kills = (
            f"{unit} has a watchdog: systemd kills it when it stands still for too long"
            for unit in target.watchdogs
        )
        stop = "stopping or restarting the unit takes until systemd's TimeoutStopSec= where it handles SIGTERM"
        return PlanNotes(
            backend="cgroup.freeze" if grouped else "SIGSTOP",
            covers=("all threads", *(("processes that come to it, and its next start",) if grouped else ())),
            not_covered=tuple(left_out),
            warnings=(
                *kills,
                *((stop,) if target.scope.kind == "unit" else ()),
                *(("logins over SSH wait for it, up to half a minute each",) if target.slows_logins else ()),
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Paused)
        helps, counted = counters_of(reader, tag)
        helped = bool(target.folders) or bool(self.run_s)
        if target.folders:
            there = [f for f in target.frozen(tag) if reader.exists(f"{f}/cgroup.freeze")]
            asked = sum(text_of(reader, f"{f}/cgroup.freeze") == FROZEN for f in there)
            still = sum(stat_of(reader, f"{f}/cgroup.events").get("frozen", 0) for f in there)
            counters = {"control_groups": len(there), "frozen": still, **counted}
        else:
            living = [p for one in target.processes if (p := find(reader, one.pid, one.started)) is not None]
            there = [str(p.pid) for p in living]
            asked = sum(p.state in _STOPPED for p in living)
            counters = {"processes": len(living), "stopped": asked, **counted}
        # In turns it stands still only half the time; and a unit that is down has nothing to stand still.
        armed = helps if helped and (self.run_s or not there) else bool(there) and asked == len(there)
        notes = [] if helps or not helped else ["the process that keeps it paused has ended"]
        notes += [] if there else ["it does not run now"]
        return Evidence(
            armed=armed, hits=counted.get("pauses", asked) + counted.get("followed", 0), counters=counters,
            notes=tuple(notes),
        )  # fmt: skip


def _refuse_nested(reader: Reader, field: str, folder: str) -> None:
    """systemd starts processes in slices, and by delegation below services: none may be frozen as a whole."""
    if folder.endswith(_SERVICE):
        below = [path for path in reader.glob(f"{folder}/*/cgroup.procs") if f"/{TAG_PREFIX}" not in path]
    else:
        below = [path for end in (*_SERVICE, _SLICE) for path in reader.glob(f"{folder}/**/*{end}/cgroup.procs")]
    if folder.endswith(_SLICE) or below:
        text = f"{field}: systemd starts processes below {folder}, and would stand still, too"
        raise Refusal(text, field=field, allowed="a unit without control groups of its own, or a container")
