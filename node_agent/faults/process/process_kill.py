"""process_kill: processes of a unit, control group, container or tree get a signal, once."""

from __future__ import annotations

import fnmatch
import random
import signal
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.processes import UnitState
from node_agent.members import Member, field_of, find, folders_of, members_of, refuse_ours, refuse_protected
from node_agent.rules import Scope
from node_agent.scopes import ScopeFields, find_scope
from node_agent.steps import Step
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.signal_processes import SignalProcesses
from node_agent.steps.task_flags import Process
from node_agent.steps.unit_again import UnitAgain

from .helping import SignalName, is_clean, is_lethal, service_of, unit_names

_UNINTERRUPTIBLE = "D"


class Victims(Target):
    """Processes, and the services of systemd that they belong to as these were beforehand."""

    what: str
    processes: tuple[Process, ...]
    comms: tuple[str, ...]
    whole: tuple[str, ...] = ()
    units: tuple[UnitState, ...] = ()

    def describe(self) -> str:
        named = ", ".join(f"{p.pid} ({c})" for p, c in zip(self.processes, self.comms, strict=True))
        return (
            f"{self.what}: {named}"
            if len(self.processes) <= 8
            else f"{self.what}: {len(self.processes)} processes"
        )


class ProcessKill(ScopeFields, Fault):
    """A signal goes once to processes. What systemd, or whoever looks after them, makes of it is theirs.

    A death cannot be taken back. Recovery starts a service again that this has ended: one that ran before, does
    not run now, has not run again since, and was not stopped by somebody else meanwhile.
    """

    name: ClassVar[str] = "process_kill"
    summary: ClassVar[str] = "processes of a unit, container or tree get a signal, once"
    operator_sees: ClassVar[str] = (
        "a service that has ended by a signal, in systemctl status and the journal, and is started again or "
        "is not, as its Restart= says; clients whose connections break"
    )
    reversible = "manual"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"unit": "cron"}, {"unit": "cron", "signal": "SIGTERM"})

    signal: SignalName = Field(default="SIGKILL", description="which signal: SIGKILL, SIGTERM, SIGSEGV, HUP …")
    which: Literal["all", "main", "one"] = Field(
        default="all", description="all processes, the main one (of a unit; else the first), or one, by the seed"
    )
    process_name: str = Field(default="", description="only processes of that name; * and ? are wildcards")
    restore: bool = Field(default=True, description="recovery starts a service again that this has ended")

    def locate(self, reader: Reader, facts: Facts) -> Victims:
        field = field_of(self)
        scope = find_scope(reader, facts, self)
        refuse_ours(field, scope)
        everyone = members_of(reader, facts, scope)
        chosen = self._choose(reader, field, scope, everyone)
        refuse_protected(reader, field, everyone if self._at_one_stroke(scope) else chosen)
        services = dict.fromkeys((*unit_names(scope), *(service_of(reader, p.pid) for p in chosen)))
        return Victims(
            what=scope.name,
            processes=tuple(Process(pid=p.pid, started=p.started) for p in chosen),
            comms=tuple(p.comm for p in chosen),
            whole=folders_of(facts, scope) if self._at_one_stroke(scope) else (),
            units=tuple(reader.services.state(unit) for unit in services if unit),
        )

    def _at_one_stroke(self, scope: Scope) -> bool:
        """Whether the kernel can kill the whole control group, with what it is just making."""
        return self.signal == "SIGKILL" and self.which == "all" and not self.process_name and bool(scope.cgroup)

    def _choose(
        self, reader: Reader, field: str, scope: Scope, everyone: tuple[Member, ...]
    ) -> tuple[Member, ...]:
        if not everyone:
            raise Refusal(f"{field}: {scope.name} has no processes", field=field, allowed="a scope that runs")
        named = tuple(p for p in everyone if fnmatch.fnmatchcase(p.comm, self.process_name or "*"))
        if not named:
            there = ", ".join(sorted({p.comm for p in everyone}))
            text = f"process_name: {scope.name} has no process called {self.process_name}"
            raise Refusal(text, field="process_name", allowed=f"one of {there}")
        if self.which == "one":
            return (random.Random(self.seed).choice(named),)  # noqa: S311  (a choice that can be made again)
        if self.which == "main":
            mains = {reader.services.state(unit).main_pid for unit in unit_names(scope)}
            return tuple(p for p in named if p.pid in mains) or (min(named, key=lambda p: (p.started, p.pid)),)
        return named

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Victims)
        number = int(signal.Signals[self.signal])
        shoot = SignalProcesses(
            number=number, processes=target.processes, folders=target.whole, wait=is_lethal(self.signal)
        )
        running = tuple(unit.unit for unit in target.units if unit.runs)
        again = (UnitAgain(units=running, once=True),) if running and self.restore else ()
        return (MarkFile(name=tag, text=f"{self.signal} to {target.what}"), *again, shoot)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Victims)
        warnings = ["a death cannot be taken back: what the processes had in memory is gone"]
        for unit in target.units:
            comes = _comes_again(unit, self.signal) if is_lethal(self.signal) else "stays"
            warnings.append(f"{unit.unit} has Restart={unit.restart or 'no'}: it {comes}")
            if unit.transient and is_clean(self.signal) and unit.restart in ("", "no", "on-failure"):
                warnings.append(
                    f"{unit.unit} is transient: systemd forgets it when it ends, and nobody can start it"
                )
        if not target.units:
            warnings.append("no service of systemd: whoever started the processes has to start them again")
        return PlanNotes(
            backend="cgroup.kill" if target.whole else "pidfd_send_signal",
            covers=(self.signal,),
            not_covered=("processes that are started later",),
            warnings=tuple(warnings),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Victims)
        there = [p for one in target.processes if (p := find(reader, one.pid, one.started)) is not None]
        notes = [f"process {p.pid} ({p.comm}) has not ended: it sleeps uninterruptibly" for p in there if
                 p.state == _UNINTERRUPTIBLE]  # fmt: skip
        counters = {"signalled": len(target.processes), "ended": len(target.processes) - len(there)}
        for before in target.units:
            now = reader.services.state(before.unit)
            notes.append(_what_became(before, now))
            counters["restarts"] = counters.get("restarts", 0) + max(0, now.restarts - before.restarts)
        hits = counters["ended"] if is_lethal(self.signal) else len(target.processes)
        armed = reader.exists(MarkFile(name=tag, text="").path)
        return Evidence(armed=armed, hits=hits, counters=counters, notes=tuple(notes))


def _comes_again(unit: UnitState, name: str) -> str:
    """What systemd will do, by the table of systemd.service(5), "Restart="; of the main process."""
    clean = is_clean(name)
    kinds = ("always", "on-success") if clean else ("always", "on-failure", "on-abnormal", "on-abort")
    return "is started again if its main process ends" if unit.restart in kinds else "stays down if it ends"


def _what_became(before: UnitState, now: UnitState) -> str:
    """What systemd did, in words."""
    if now.main_pid and now.main_pid != before.main_pid:
        return f"systemd has started {now.unit} again: main process {before.main_pid} -> {now.main_pid}"
    if now.active == "failed":
        return f"{now.unit} is failed ({now.result}), not started again after {now.restarts} restarts"
    if now.load == "not-found":
        return f"systemd has forgotten {now.unit}: it was transient"
    return f"{now.unit} is {now.active} ({now.sub})" + ("" if now.runs else f", result {now.result}")
