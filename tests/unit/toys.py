"""Faults and agents to play with: the command line runs against them as against real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from node_agent.catalog import find_fault
from node_agent.errors import ApplyError, ConflictError, NotFoundError, Refusal, StoppedError
from node_agent.fault import Capability, Evidence, Facts, Fault, Missing, PlanNotes, Target, build_fault
from node_agent.host.mounting import Repair
from node_agent.injection import ENDED, InjectionView, Plan
from node_agent.residue import Difference
from node_agent.schedule import Schedule, ScheduleValue


class ToyError(Fault):
    """A fault with every kind of parameter."""

    name: ClassVar[str] = "toy_error"
    summary: ClassVar[str] = "reads of a toy fail"
    operator_sees: ClassVar[str] = "I/O error, dev toy"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"file": "/srv/data/a"},)

    file: str = Field(description="file that fails")
    sectors: int | None = Field(default=None, ge=1, le=64, description="how many sectors; all where left out")
    loss_percent: float = Field(default=5, gt=0, le=100, description="share of reads that fail")
    mode: Literal["read", "write"] = Field(default="read", description="which way fails")
    when: Schedule = Field(default=ScheduleValue(), description="when it bites")
    ports: tuple[int, ...] = Field(default=(), description="only these")
    permanent: bool = Field(default=False, description="a rewrite does not heal it")


class ToyDelay(Fault):
    """A fault without parameters."""

    name: ClassVar[str] = "toy_delay"
    summary: ClassVar[str] = "a toy is late"
    operator_sees: ClassVar[str] = "slow toys"


class ToyLoss(Fault):
    """A fault with a schedule, and without the form that its mechanism cannot do."""

    name: ClassVar[str] = "toy_loss"
    summary: ClassVar[str] = "toys get lost"
    operator_sees: ClassVar[str] = "fewer toys"

    schedule: Schedule = Field(default=ScheduleValue(), description="when it bites")

    @field_validator("schedule")
    @classmethod
    def _counted(cls, value: ScheduleValue) -> ScheduleValue:
        if value.kind == "burst":
            raise ValueError("toys have no clock")
        if value.kind == "first" and value.a > 1000:
            raise ValueError("at most 1000")
        return value


class ToyPartition(Fault):
    """A fault between nodes."""

    name: ClassVar[str] = "toy_partition"
    summary: ClassVar[str] = "toys do not hear of each other"
    operator_sees: ClassVar[str] = "silence"

    peers: tuple[str, ...] = Field(min_length=1, max_length=64, description="whom it does not hear")
    direction: Literal["out", "in", "both"] = Field(default="both", description="which way")


class ToyStall(Fault):
    """A fault of one unit or container."""

    name: ClassVar[str] = "toy_stall"
    summary: ClassVar[str] = "a toy stands still"
    operator_sees: ClassVar[str] = "a toy that does not move"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"unit": "train"},)

    unit: str = Field(default="", description="systemd unit")
    container: str = Field(default="", description="container by id")
    pid: int = Field(default=0, ge=0, description="process")


class ToyTarget(Target):
    """Where a toy fault lands."""

    what: str
    group: str = ""

    def describe(self) -> str:
        return self.what


FACTS = Facts(
    node="w1", kernel="6.12", boot_id="b", os="Simulated", python="3.13", agent_version="0.1.0", cpus=1,
    memory_mib=512, mounts=(),
)  # fmt: skip


@dataclass
class ToyInjector:
    """:class:`node_agent.service.InjectorApi` as plain objects, with switches for what goes wrong."""

    node: str
    lacks: tuple[Missing, ...] = ()
    fails: str = ""
    sticks: str = ""
    hits: int = 0
    stopped: bool = False
    known: dict[str, InjectionView] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    applied: list[str] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)
    """The control groups of the containers that run here, by id."""

    def capabilities(self, again: bool = False) -> Mapping[str, Capability]:
        found = {"dm": Capability(name="dm", available=True)}
        for one in self.lacks:
            found[one.capability] = Capability(
                name=one.capability, available=False, reason=one.reason, remedy=one.remedy
            )
        return found

    def support(self) -> tuple[tuple[str, tuple[Missing, ...]], ...]:
        return (("toy_error", self.lacks), ("toy_delay", ()))

    def plan(self, injection_id: str, fault_name: str, parameters: Mapping[str, Any]) -> Plan:
        fault = build_fault(find_fault(fault_name), parameters)
        target = ToyTarget(
            what=f"{getattr(fault, 'file', 'a toy')} on {self.node}",
            group=self._group(getattr(fault, "container", "")),
        )
        notes = PlanNotes(backend="toy", covers=("read",), not_covered=("mmap",), warnings=("it is a toy",))
        return Plan(fault=fault, facts=FACTS, target=target, notes=notes, steps=(), missing=self.lacks)

    def _group(self, container: str) -> str:
        if container and container not in self.containers:
            raise Refusal(f"container: {container} does not run on this node", field="container")
        return f"/sys/fs/cgroup{self.containers[container]}" if container else ""

    def apply(
        self, injection_id: str, fault_name: str, parameters: Mapping[str, Any], lease_s: float = 0
    ) -> InjectionView:
        self.applied.append(injection_id)
        if injection_id in self.known:
            return self.known[injection_id]
        self._group(str(parameters.get("container", "")))
        if self.stopped:
            raise StoppedError("new faults are refused on this node", allowed="labctl stop --clear allows them")
        if self.fails == "conflict":
            raise ConflictError("dm data is held by injection other123", allowed="labctl recover other123")
        if self.fails:
            raise ApplyError(f"{self.fails}; everything done so far was undone")
        view = InjectionView(
            id=injection_id, node=self.node, fault=fault_name, parameters=dict(parameters), state="active",
            target=f"{parameters.get('file', 'a toy')} on {self.node}", backend="toy", lease_s=lease_s or 900,
            expires_in_s=lease_s or 900, age_s=0,
            evidence=Evidence(armed=True, hits=self.hits, counters={"seen": self.hits}, log=("I/O error [sda]",)),
        )  # fmt: skip
        self.known[injection_id] = view
        return view

    def extend(self, injection_id: str, lease_s: float) -> InjectionView:
        return self._change(injection_id, lease_s=lease_s, expires_in_s=lease_s)

    def recover(self, ids: tuple[str, ...] | None, why: str) -> tuple[InjectionView, ...]:
        chosen = ids if ids is not None else tuple(i for i, one in self.known.items() if one.state not in ENDED)
        return tuple(self._end(one, why) for one in chosen)

    def _end(self, injection_id: str, why: str) -> InjectionView:
        if self.view(injection_id).state in ENDED:
            return self.view(injection_id)
        if self.sticks:
            return self._change(injection_id, state="stuck", residue=(self.sticks,), reason=why)
        return self._change(injection_id, state="recovered", reason=why, expires_in_s=0)

    def _change(self, injection_id: str, **changes: Any) -> InjectionView:
        self.known[injection_id] = self.view(injection_id).model_copy(update=changes)
        return self.known[injection_id]

    def set_clock(self, unix_s: float) -> None:
        raise NotImplementedError

    def set_stopped(self, stopped: bool) -> None:
        self.stopped = stopped

    def injections(self, ended: bool = False, ids: tuple[str, ...] = ()) -> tuple[InjectionView, ...]:
        chosen = [one for one in self.known.values() if not ids or one.id in ids]
        return tuple(one for one in chosen if ended or one.state not in ENDED)

    def view(self, injection_id: str) -> InjectionView:
        if injection_id not in self.known:
            raise NotFoundError(f"no injection {injection_id} on this node", field="id")
        return self.known[injection_id]

    def residue(self) -> tuple[Difference, ...]:
        return self.differences

    def repair_disk(self, injection_id: str, disk: str) -> Repair:
        raise NotImplementedError
