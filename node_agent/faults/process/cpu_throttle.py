"""cpu_throttle: a unit, control group or container gets no more than so much CPU time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import ApplyError, Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.members import (
    GroupFields,
    field_of,
    find_group,
    folders_of,
    members_of,
    refuse_ours,
    refuse_protected,
)
from node_agent.probe import Lacking, capability
from node_agent.rules import Scope
from node_agent.scopes import cgroup_root
from node_agent.signs import Sign, rises
from node_agent.steps import Step
from node_agent.steps.cpu_quota import UNLIMITED, CpuQuota, quota_of, switches_above
from node_agent.steps.helper_process import HelperProcess
from node_agent.stressors import READY_S, command

from .helping import counters_of, stat_of, text_of, unit_names

_LEAST_US = 1000
_STALLED = 9
"""Which number of cpu.pressure is the total of "some": the averages before it count as three each."""


class Throttled(Target):
    """Control groups below `root`, what their cpu.max said, and where the controller is off above them."""

    scope: Scope
    root: str
    folders: tuple[str, ...]
    was: tuple[str, ...]
    off: tuple[str, ...]
    throttled: tuple[int, ...]

    def describe(self) -> str:
        return f"{self.scope.name}: {', '.join(self.folders)}"


class CpuThrottle(GroupFields, Fault):
    """The processes of a unit, control group or container together get so much CPU time, as by too low a limit.

    The kernel's own quota (cpu.max): in each period they run until the quota is used up, and then wait for the
    next. It stays through restarts of the unit, and through daemon-reload; systemd is not told of it.
    """

    name: ClassVar[str] = "cpu_throttle"
    summary: ClassVar[str] = "a unit or container gets no more than so much CPU time"
    operator_sees: ClassVar[str] = (
        "a slow service on a node with idle CPUs: nr_throttled and throttled_usec of its cpu.stat grow, its "
        "cpu.pressure rises, latencies have steps of the period; systemctl show knows no CPUQuota"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron"},
        {"cgroup": "/work", "quota_percent": 2.5},
    )

    quota_percent: float = Field(
        default=10, gt=0, le=100_000, description="of one CPU, for all processes together"
    )
    period_ms: int = Field(default=100, ge=1, le=1000, description="the quota is for a period of so many ms")

    @property
    def value(self) -> str:
        """For cpu.max. The kernel takes no quota below 1 ms."""
        period = self.period_ms * 1000
        return f"{round(self.quota_percent * period / 100)} {period}"

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cgroup.cpu")

    def locate(self, reader: Reader, facts: Facts) -> Throttled:
        if int(self.value.split()[0]) < _LEAST_US:
            least = 100 * _LEAST_US / (self.period_ms * 1000)
            text = f"quota_percent: {self.quota_percent:g} % of {self.period_ms} ms is less than 1 ms"
            raise Refusal(text, field="quota_percent", allowed=f"from {least:g} on, or a longer period_ms")
        field = field_of(self)
        scope = find_group(reader, facts, self)
        refuse_ours(field, scope)
        root, folders = cgroup_root(facts, field), folders_of(facts, scope)
        members = members_of(reader, facts, scope)
        if not members:
            raise Refusal(f"{field}: {scope.name} has no processes", field=field, allowed="a scope that runs")
        refuse_protected(reader, field, members)
        off = tuple(path for path in switches_above(root, folders) if "cpu" not in text_of(reader, path).split())
        for path in off:
            _refuse_inner(reader, field, root, path)
        was = tuple(quota_of(reader, folder) for folder in folders)
        throttled = tuple(stat_of(reader, f"{folder}/cpu.stat").get("nr_throttled", 0) for folder in folders)
        return Throttled(scope=scope, root=root, folders=folders, was=was, off=off, throttled=throttled)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Throttled)
        quota = CpuQuota(
            root=target.root, folders=target.folders, value=self.value, units=unit_names(target.scope),
            was=tuple(quota or f"{UNLIMITED} 100000" for quota in target.was), off=target.off,
        )  # fmt: skip
        payload = {
            "values": {f"{folder}/cpu.max": self.value for folder in target.folders},
            "switches": switches_above(target.root, target.folders), "controller": "cpu",
        }  # fmt: skip
        helper = HelperProcess(
            name=tag, title="keep the quota when the control group is made anew",
            argv=command("keeper"), payload=json.dumps(payload), ready_s=READY_S,
        )  # fmt: skip
        return (quota, helper)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Throttled)
        on = tuple(f"the controller cpu is switched on in {path} for as long as this lasts" for path in target.off)
        return PlanNotes(
            backend="cpu.max",
            covers=("all threads, control groups below, and the next start of the unit",),
            not_covered=("threads with a real-time policy",),
            warnings=on,
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        where = target.folders[0] if isinstance(target, Throttled) else "/sys/fs/cgroup/**"
        what = "the time that its threads have waited for a CPU, by cpu.pressure"
        return (rises(what, f"{where}/cpu.pressure", nth=_STALLED, when="once it wants more than it gets"),)

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        assert isinstance(target, Throttled)
        for folder in target.folders:
            if quota_of(reader, folder) not in ("", self.value):
                raise ApplyError(f"{folder}/cpu.max says {quota_of(reader, folder)}, not {self.value}")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Throttled)
        helps, counted = counters_of(reader, tag)
        there = [folder for folder in target.folders if reader.exists(f"{folder}/cgroup.procs")]
        limited = sum(quota_of(reader, folder) == self.value for folder in there)
        counters = {"control_groups": len(there), "limited": limited, **counted}
        hits = 0
        for folder, before in zip(target.folders, target.throttled, strict=True):
            stat = stat_of(reader, f"{folder}/cpu.stat")
            now = stat.get("nr_throttled", 0)
            hits += now - before if now >= before else now  # less than before: the control group was made anew
            for name in ("nr_periods", "nr_throttled", "throttled_usec"):
                counters[name] = counters.get(name, 0) + stat.get(name, 0)
        notes = [] if helps else ["the process that keeps the quota has ended"]
        notes += [] if there else ["it does not run now"]
        armed = helps and limited == len(there)
        return Evidence(armed=armed, hits=hits, counters=counters, notes=tuple(notes))


def _refuse_inner(reader: Reader, field: str, root: str, switch: str) -> None:
    """A control group with processes of its own cannot hand on a controller ("no internal process constraint")."""
    folder = switch.rpartition("/")[0]
    if folder != root and text_of(reader, f"{folder}/cgroup.procs"):
        path = folder.removeprefix(root)
        text = f"{field}: {path} has processes of its own, so what is below it gets no quota"
        raise Refusal(text, field=field, allowed=f"cgroup {path}")


@capability(
    "cgroup.cpu", remedy="boot with systemd.unified_cgroup_hierarchy=1, on a kernel with CONFIG_CFS_BANDWIDTH"
)
def probe(host: Host) -> None:
    """The control groups of version 2 have the controller cpu."""
    if "cpu" not in text_of(host, "/sys/fs/cgroup/cgroup.controllers").split():
        raise Lacking("there are no control groups of version 2 with the controller cpu")
