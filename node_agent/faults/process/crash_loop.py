"""crash_loop: the main process of a unit dies again and again, some time after each start."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.processes import UnitState
from node_agent.members import folders_of, members_of, refuse_ours, refuse_protected
from node_agent.scopes import ScopeFields, find_scope
from node_agent.steps import Step
from node_agent.steps.helper_process import HelperProcess
from node_agent.steps.unit_again import UnitAgain
from node_agent.stressors import READY_S, command

from .helping import SignalName, counters_of, is_clean, is_lethal, unit_names


class Crashing(Target):
    """A unit, as it was beforehand, and where its processes are."""

    state: UnitState
    folder: str

    def describe(self) -> str:
        return f"unit {self.state.unit}, main process {self.state.main_pid}"


class CrashLoop(Fault):
    """A service ends by a signal so many seconds after each start, until systemd has had enough of it.

    systemd starts it again as its Restart= says, and gives up at its start limit (StartLimitBurst= starts within
    StartLimitIntervalSec=). Recovery lets systemd forget the failures, and starts the service where it ran before
    and nobody has stopped it meanwhile.
    """

    name: ClassVar[str] = "crash_loop"
    summary: ClassVar[str] = "the main process of a unit dies again and again after each start"
    operator_sees: ClassVar[str] = (
        "Main process exited, code=killed, status=…; a growing NRestarts; then 'Start request repeated too "
        "quickly', and a service that stays dead until reset-failed, whatever becomes of the cause"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"unit": "cron"}, {"unit": "cron", "count": 6})

    unit: str = Field(default="", description="systemd unit; .service may be left out")
    after_s: float = Field(default=1.0, ge=0, le=3600, description="seconds from each start of it to its death")
    signal: SignalName = Field(default="SIGSEGV", description="which signal ends it: SIGSEGV, SIGABRT, SIGKILL …")
    count: int = Field(default=0, ge=0, le=100_000, description="how often at most; 0: as long as this lasts")

    def locate(self, reader: Reader, facts: Facts) -> Crashing:
        scope = find_scope(reader, facts, ScopeFields(unit=self.unit))
        refuse_ours("unit", scope)
        units = unit_names(scope)
        if len(units) != 1:
            raise Refusal(f"unit: {scope.name} is several", field="unit", allowed=f"one of {', '.join(units)}")
        if not is_lethal(self.signal):
            text = f"signal: no process ends by {self.signal}"
            raise Refusal(text, field="signal", allowed="SIGSEGV, SIGABRT, SIGKILL, SIGTERM …")
        state = reader.services.state(units[0])
        if not state.main_pid:
            text = f"unit: {state.unit} is {state.active} and has no main process"
            raise Refusal(text, field="unit", allowed="a service that runs")
        refuse_protected(reader, "unit", members_of(reader, facts, scope))
        return Crashing(state=state, folder=folders_of(facts, scope)[0])

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Crashing)
        unit = target.state.unit
        payload = {
            "unit": unit, "folder": target.folder, "after_s": self.after_s, "count": self.count,
            "signal": int(signal.Signals[self.signal]),
        }  # fmt: skip
        helper = HelperProcess(
            name=tag, title=f"{self.signal} to the main process of {unit} {self.after_s:g} s after each start",
            argv=command("crasher"), payload=json.dumps(payload), ready_s=READY_S,
        )  # fmt: skip
        return (UnitAgain(units=(unit,), once=False), helper)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Crashing)
        state, warnings = target.state, []
        if state.restart in ("", "no") or (
            is_clean(self.signal) and state.restart not in ("always", "on-success")
        ):
            warnings.append(
                f"{state.unit} has Restart={state.restart or 'no'}: after {self.signal} it stays down at once"
            )
        if state.transient and is_clean(self.signal):
            warnings.append(f"{state.unit} is transient: systemd forgets it when it ends well")
        return PlanNotes(
            backend="pidfd_send_signal",
            covers=("the main process, through all its restarts",),
            not_covered=("other processes of the unit: systemd ends them as its KillMode= says",),
            warnings=tuple(warnings),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Crashing)
        helps, counted = counters_of(reader, tag)
        now = reader.services.state(target.state.unit)
        notes = [f"{now.unit} is {now.active} ({now.sub}, {now.result}) after {now.restarts} restarts"]
        notes += [] if helps else ["the process that kills it has ended"]
        restarts = max(0, now.restarts - target.state.restarts)
        return Evidence(
            armed=helps,
            hits=counted.get("kills", 0),
            counters={**counted, "restarts": restarts},
            notes=tuple(notes),
        )
