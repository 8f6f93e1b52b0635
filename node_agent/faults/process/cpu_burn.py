"""cpu_burn: a noisy neighbour takes CPU time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.scopes import cgroup_root
from node_agent.signs import Sign, rises
from node_agent.steps import Step
from node_agent.steps.helper_process import HelperProcess
from node_agent.stressors import READY_S, command

from .cpus import CPU_LIST, cpus_in, online_cpus, shown
from .helping import counters_of, stat_of

_STALLED = 9


class Load(Target):
    """How many workers run on which CPUs, and where control groups are."""

    workers: int
    cpus: tuple[int, ...]
    root: str

    def describe(self) -> str:
        return f"{self.workers} workers on CPUs {shown(self.cpus)}"


class CpuBurn(Fault):
    """Processes of somebody else use up CPU time, as a build, a backup or a bug does.

    They are in a control group of their own at the top, beside system.slice, and compete with it by weight. They
    end with the injection, and with the agent. The OOM killer does not choose them.
    """

    name: ClassVar[str] = "cpu_burn"
    summary: ClassVar[str] = "a noisy neighbour takes CPU time"
    operator_sees: ClassVar[str] = (
        "processes at the top of top that belong to no service, load and cpu.pressure up, every other program "
        "slower; killing them ends it, unless they are respawned"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"workers": 2, "load_percent": 50, "cpus": "0"})

    workers: int = Field(default=0, ge=0, le=1024, description="how many processes; 0: one for each CPU")
    load_percent: float = Field(
        default=100, gt=0, le=100, description="of a CPU, that each takes where it can have it"
    )
    cpus: str = Field(default="", pattern=CPU_LIST, description='only on these CPUs, such as "0" or "1,4-6"')
    weight: int = Field(
        default=0, ge=0, le=10_000, description="cpu.weight of them all together; 0: 100, as every other"
    )
    process_name: str = Field(
        default="worker",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,14}$",
        description="what they are called in ps and top",
    )
    respawn: bool = Field(default=False, description="a worker that somebody kills is replaced")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cgroup.cpu")

    def locate(self, reader: Reader, facts: Facts) -> Load:
        online = online_cpus(reader)
        chosen = cpus_in(self.cpus) if self.cpus else online
        absent = sorted(set(chosen) - set(online))
        if absent:
            text = f"cpus: {shown(absent)} not online on this node"
            raise Refusal(text, field="cpus", allowed=f"some of {shown(online)}")
        return Load(workers=self.workers or len(chosen), cpus=tuple(chosen), root=cgroup_root(facts, "cpus"))

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Load)
        payload = {
            "name": self.process_name, "workers": target.workers, "load_percent": self.load_percent,
            "cpus": target.cpus if self.cpus else (), "weight": self.weight, "folder": f"{target.root}/{tag}",
            "respawn": self.respawn,
        }  # fmt: skip
        title = f"{target.workers} processes called {self.process_name} take {self.load_percent:g} % of a CPU each"
        return (
            HelperProcess(
                name=tag, title=title, argv=command("cpu"), payload=json.dumps(payload), ready_s=READY_S
            ),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="processes",
            covers=("everybody who wants the same CPUs",),
            not_covered=("processes with a real-time policy",),
            warnings=("the agent and sshd are slower, too; what they need by weight they still get",),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        what = "the time that threads of the node have waited for a CPU, by /proc/pressure/cpu"
        return (rises(what, "/proc/pressure/cpu", nth=_STALLED, when="once others want CPU time, too"),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Load)
        helps, counted = counters_of(reader, tag)
        used = stat_of(reader, f"{target.root}/{tag}/cpu.stat").get("usage_usec", 0) // 1000
        left = counted.get("workers", target.workers if helps else 0)
        notes = (
            [] if left >= target.workers else [f"somebody has ended workers: {left} of {target.workers} are left"]
        )
        counters = {**counted, "workers": left, "cpu_ms": used}
        return Evidence(armed=helps and left > 0, hits=used, counters=counters, notes=tuple(notes))
