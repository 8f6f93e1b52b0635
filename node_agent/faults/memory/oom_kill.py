"""oom_kill: memory runs out in a control group or on the node, and the kernel kills a chosen process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from node_agent.errors import ApplyError, Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.scopes import ScopeFields, cgroup_root, find_scope
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.cgroup_limit import CgroupLimit
from node_agent.steps.group_kill import GroupKill
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.oom_score import OomScore
from node_agent.steps.task_flags import start_of
from node_agent.steps.unit_again import UnitAgain

from .groups import (
    KIB,
    MIB,
    NODE_MEMORY,
    Group,
    GroupFields,
    answers_of,
    end_of_helper,
    find_group,
    group_of_process,
    has_swap,
    keeper,
    kept_bytes,
    limit,
    number,
    numbers,
    own_kib,
    processes_of,
    stressor,
    whole_pages,
)

READY_S = 100.0
"""A large node takes long to fill."""

_LEAST_KIB = 1024
_KILLED = r"(Out of memory|Memory cgroup out of memory): Killed process {pid} "
_GROUP_KILL = "oom-kill:constraint=CONSTRAINT_MEMCG"
_LOG_LINES = 10


class OomVictim(Target):
    """A process, the control group it is in, and the limit for that (0: the whole node runs out)."""

    pid: int
    started: int
    score: int
    comm: str
    group: Group
    root: str
    limit: int
    swaps: bool
    kills_before: int

    def describe(self) -> str:
        where = self.group.title if self.limit else "the node"
        return f"process {self.pid} ({self.comm}) of {self.group.title}, when {where} is out of memory"


class OomKill(GroupFields, Fault):
    """The kernel kills a process because there is no memory left: a real kill by the kernel, not a signal.

    By default in the victim's own control group: memory.max is set below what the group cannot do without, by half
    of what the victim has, so that its end is enough. The limit stays until the recovery, also after a restart of
    the unit. With `where` node, a process of this injection takes memory until the kernel has killed one on the
    whole node, and gives it back at once. The victim is the process with most memory, or `pid`; it is marked so
    that the kernel chooses it (oom_score_adj).
    """

    name: ClassVar[str] = "oom_kill"
    summary: ClassVar[str] = "the kernel is out of memory and kills a chosen process"
    operator_sees: ClassVar[str] = (
        "a process ended with signal 9 that nobody has sent, a report of the kernel ('oom-kill:constraint=…', "
        "'Killed process …') with the control group, oom_kill in that group's memory.events; systemd ends the "
        "unit with the result oom-kill unless it has OOMPolicy=continue, while the node has memory to spare"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"unit": "cron"}, {"pid": 700, "where": "node"})

    pid: int = Field(default=0, ge=0, le=2**22, description="the victim; none: the one with most memory")
    where: Literal["group", "node"] = Field(
        default="group", description="what runs out of memory: the victim's control group, or the whole node"
    )

    @model_validator(mode="after")
    def _somebody(self) -> OomKill:
        if not (self.pid or self.names_a_group):
            raise ValueError("give pid, unit, cgroup or container: nobody is killed by chance")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cgroup.memory")

    def locate(self, reader: Reader, facts: Facts) -> OomVictim:
        group = (
            find_group(reader, facts, self) if self.names_a_group else group_of_process(reader, facts, self.pid)
        )
        pid = self.pid or max(processes_of(reader, group.path), key=lambda p: own_kib(reader, p))
        if self.pid:
            find_scope(reader, facts, ScopeFields(pid=self.pid))  # refuses pid 1, the agent, sshd and threads
            if pid not in processes_of(reader, group.path):
                raise Refusal(f"pid: {pid} is not in {group.title}", field="pid", allowed="a process of it")
        comm, has = reader.read_text(f"/proc/{pid}/comm").strip(), own_kib(reader, pid)
        if has < _LEAST_KIB:
            raise Refusal(
                f"pid: process {pid} ({comm}) has {has} KiB of its own: its end would free nothing", field="pid",
                allowed=f"one with {_LEAST_KIB} KiB or more",
            )  # fmt: skip
        if self.where == "node" and has_swap(reader):
            raise Refusal("where: the node swaps, so it does not run out", field="where", allowed="group")
        value = 0
        if self.where == "group":
            value = whole_pages(kept_bytes(reader, group) - has * KIB // 2)
            if value < MIB // 4:
                raise Refusal(f"unit: {group.title} is too small to limit", field="unit", allowed="a larger one")
        return OomVictim(
            pid=pid, started=start_of(reader, pid),
            score=number(reader, f"/proc/{pid}/oom_score_adj"), comm=comm, group=group, root=cgroup_root(facts),
            limit=value,
            swaps=has_swap(reader), kills_before=_kills(reader, group),
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, OomVictim)
        care = (UnitAgain(units=(target.group.unit,), once=False),) if target.group.unit else ()
        first = (*care, MarkFile(name=tag, text=f"out of memory: {target.comm}"),
                 OomScore(pid=target.pid, started=target.started, default=target.score))  # fmt: skip
        if not target.limit:
            title = "take memory until the kernel kills somebody"
            helper = stressor(tag, "memory", title, {"mode": "exhaust"}, claims=(NODE_MEMORY,), ready_s=READY_S)
            return (*first, helper)
        kill = GroupKill(
            **limit(target.group, "memory.max", target.limit).model_dump(exclude={"kind"}), pid=target.pid
        )
        limits: list[CgroupLimit] = [kill]
        if target.swaps:
            limits.insert(0, limit(target.group, "memory.swap.max", 0))
        return (*first, *limits, keeper(tag, target.group, limits))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, OomVictim)
        ends = f"systemd may end all of {target.group.unit} (OOMPolicy)" if target.group.unit else ""
        if target.limit:
            return PlanNotes(
                backend="memory.max",
                covers=(f"{target.group.title}, also after a restart",),
                warnings=tuple(filter(None, (ends, "what grows beyond the limit later is killed, too"))),
            )
        return PlanNotes(
            backend="all memory of the node",
            covers=(f"process {target.pid} ({target.comm}), once",),
            warnings=tuple(filter(None, (ends, "for a moment nobody on the node gets memory"))),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        pid = str(target.pid) if isinstance(target, OomVictim) else r"\d+"
        limited = not isinstance(target, OomVictim) or bool(target.limit)
        kind = "CONSTRAINT_MEMCG" if limited else "CONSTRAINT_NONE"
        return (
            in_log("the kernel's report of who ran out of memory", f"oom-kill:constraint={kind},"),
            in_log("the kernel's line of whom it has killed", _KILLED.format(pid=pid)),
        )

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        assert isinstance(target, OomVictim)
        with suppress(OSError):
            state = reader.read_text(f"/proc/{target.pid}/stat").rpartition(")")[2].split()[0]
            if (
                start_of(reader, target.pid) == target.started
                and state not in "ZX"
                and not _kills(reader, target.group) > target.kills_before
            ):
                raise ApplyError(f"the kernel has not killed process {target.pid} ({target.comm})")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, OomVictim)
        records, lost = reader.log.since(log_mark)
        mine = f"oom_memcg={target.group.below_root},"
        reports = [r.text for r in records if _GROUP_KILL in r.text and mine in r.text]
        victim = re.compile(_KILLED.format(pid=target.pid))
        kills = [r.text for r in records if victim.search(r.text)]
        counted = _kills(reader, target.group) - target.kills_before
        hits = max(len(reports), len(kills), counted if target.limit else 0)
        counters = {"killed": hits, **answers_of(reader, tag)}
        notes = [end_of_helper(reader, target.root, tag)]
        if not kills:
            notes.append(f"the kernel has not told of the end of process {target.pid}")
        elif target.limit and not limit(target.group, "memory.max", target.limit).stands(reader):
            there = reader.exists(f"{target.group.path}/memory.max")
            notes.append("somebody has changed memory.max" if there else f"{target.group.title} does not run now")
        return Evidence(
            armed=not notes[0], hits=hits, counters=counters, log=tuple((*reports, *kills)[-_LOG_LINES:]),
            log_gap=lost > 0, notes=tuple(filter(None, notes)),
        )  # fmt: skip


def _kills(reader: Reader, group: Group) -> int:
    return numbers(reader, f"{group.path}/memory.events").get("oom_kill", 0)
