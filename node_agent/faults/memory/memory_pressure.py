"""memory_pressure: hardly any memory is left, on the node or for one unit; everything that needs some waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.scopes import cgroup_root
from node_agent.signs import Sign, rises
from node_agent.steps import Step
from node_agent.steps.mark_file import MarkFile

from .groups import (
    KIB,
    MIB,
    NODE_MEMORY,
    Group,
    GroupFields,
    answers_of,
    end_of_helper,
    find_group,
    keeper,
    kept_bytes,
    limit,
    meminfo_kib,
    numbers,
    stalled_us,
    stressor,
    whole_pages,
)

LEAST_MIB, USUAL_MIB = 64, 96
"""So much always stays available: for the agent, for logins, and for the kernel's own needs."""

_SMALLEST = MIB
_STALLED, _NTH_OF_SOME = "/proc/pressure/memory", 9


class PressedPlace(Target):
    """The node (no group) or a control group and its limit in bytes; and what was counted before."""

    group: Group | None
    root: str
    high: int
    events_before: int
    stalled_before: int
    title: str

    def describe(self) -> str:
        return self.title

    @property
    def pressure(self) -> str:
        """The file that tells how long somebody waited for memory."""
        return f"{self.group.path}/memory.pressure" if self.group else _STALLED


class MemoryPressure(GroupFields, Fault):
    """Memory is short: everything that needs more first waits until the kernel has taken some from somebody.

    Of the whole node, a process of this injection holds all memory but `available_mib`; it gives back what others
    take beyond that, and takes what they free. Of a unit, a control group or a container, memory.high is set to
    `percent` of what it has now that the kernel cannot take back by itself; whatever it needs more is throttled.
    """

    name: ClassVar[str] = "memory_pressure"
    summary: ClassVar[str] = "memory is short on the node or for one unit, which waits for it"
    operator_sees: ClassVar[str] = (
        "free says that hardly anything is available, or memory.current of one control group is at memory.high "
        "while the node has plenty; the memory pressure (PSI) rises, requests take long, the page cache is small "
        "and files are read again and again; nobody is killed"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"unit": "cron", "percent": 80})

    available_mib: int = Field(
        default=USUAL_MIB, ge=LEAST_MIB, le=1 << 20, description="whole node: so much stays available, in MiB"
    )
    percent: int = Field(
        default=90, ge=10, le=100, description="of a unit: memory.high, in per cent of what it cannot do without"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> MemoryPressure:
        if self.names_a_group and self.available_mib != USUAL_MIB:
            raise ValueError("available_mib is for the whole node; leave out unit, cgroup and container, or it")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cgroup.memory")

    def locate(self, reader: Reader, facts: Facts) -> PressedPlace:
        root = cgroup_root(facts)
        if not self.names_a_group:
            available = meminfo_kib(reader, "MemAvailable") // KIB
            if available <= self.available_mib:
                raise Refusal(
                    f"available_mib: only {available} MiB are available as it is", field="available_mib",
                    allowed=f"{LEAST_MIB} to {max(LEAST_MIB, available - 1)}",
                )  # fmt: skip
            return PressedPlace(
                group=None, root=root, high=0, events_before=0, stalled_before=stalled_us(reader, _STALLED),
                title=f"all memory of the node but {self.available_mib} MiB",
            )  # fmt: skip
        group = find_group(reader, facts, self)
        high = whole_pages(kept_bytes(reader, group) * self.percent // 100)
        if high < _SMALLEST:
            raise Refusal(
                f"percent: {group.title} has only {kept_bytes(reader, group) // KIB} KiB", field="percent",
                allowed=f"a limit of {_SMALLEST // KIB} KiB or more",
            )  # fmt: skip
        return PressedPlace(
            group=group, root=root, high=high, title=f"memory of {group.title}: {high // KIB} KiB",
            events_before=numbers(reader, f"{group.path}/memory.events").get("high", 0),
            stalled_before=stalled_us(reader, f"{group.path}/memory.pressure"),
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, PressedPlace)
        if target.group is None:
            payload = {"mode": "hold", "leave_kib": self.available_mib * KIB}
            title = f"hold all memory but {self.available_mib} MiB"
            return (stressor(tag, "memory", title, payload, claims=(NODE_MEMORY,)),)
        high = limit(target.group, "memory.high", target.high)
        return (MarkFile(name=tag, text=f"{high.path} is {high.value}"), high, keeper(tag, target.group, (high,)))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, PressedPlace)
        if target.group is None:
            return PlanNotes(
                backend="locked memory",
                covers=("whatever needs memory on this node",),
                not_covered=("swap: what others have in memory may be swapped, where the node has swap",),
                warnings=(
                    "the kernel may run out of memory in a burst of allocations: it then kills the process of "
                    "this injection first, the evidence says so, and the pressure is over",
                ),
            )
        return PlanNotes(
            backend="memory.high",
            covers=(f"whatever needs memory in {target.group.title}, also after a restart",),
            not_covered=("memory that is charged to another control group, such as shared pages of the cache",),
            warnings=("what the kernel takes back first is the page cache of the unit: its files are read again",),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        path = target.pressure if isinstance(target, PressedPlace) else _STALLED
        when = "once something needs memory"
        found = [rises("time that something waited for memory (microseconds)", path, _NTH_OF_SOME, when)]
        if isinstance(target, PressedPlace) and target.group:
            found.append(
                rises("times that it was over memory.high", f"{target.group.path}/memory.events", 1, when)
            )
        return tuple(found)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, PressedPlace)
        stalled = max(0, stalled_us(reader, target.pressure) - target.stalled_before)
        counters = {"stalled_us": stalled}
        ended = end_of_helper(reader, target.root, tag)
        if target.group is None:
            counters |= {"available_kib": meminfo_kib(reader, "MemAvailable"), **answers_of(reader, tag)}
            return Evidence(armed=not ended, hits=0, counters=counters, notes=(ended,) if ended else ())
        path = target.group.path
        step = limit(target.group, "memory.high", target.high)
        renewed = answers_of(reader, tag).get("renewed", 0)
        events = numbers(reader, f"{path}/memory.events").get("high", 0)
        hits = max(0, events - (0 if renewed else target.events_before))
        counters |= {"over_high": hits, "renewed": renewed}
        stands = step.stands(reader)
        notes = [ended] if ended else []
        if not stands:
            there = reader.exists(step.path)
            notes.append(f"somebody has changed {step.path}" if there else f"{target.group.title} does not run")
        armed = stands or (not ended and not reader.exists(step.path))
        return Evidence(armed=armed, hits=hits, counters=counters, notes=tuple(notes))
