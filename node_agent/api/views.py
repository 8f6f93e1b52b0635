"""What labctl gets to see of a node, as values: the answers of the contract that the agent has no model for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from node_agent.fault import Capability, Missing
from node_agent.injection import InjectionView


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeFacts(_View):
    """A node and its agent. `clock_unix_s` and `boottime_s` were read when the agent answered."""

    node: str
    kernel: str
    boot_id: str
    os: str
    python: str
    agent_version: str
    contract: int
    cpus: int
    memory_mib: int
    clock_unix_s: float
    boottime_s: float
    stopped: bool
    machine: str = ""
    """The machine type, such as x86_64; empty where an older agent does not say."""


class FaultSupport(_View):
    """Whether a node can plant a fault with its default parameters, and what it lacks where not."""

    fault: str
    available: bool
    missing: tuple[Missing, ...] = ()


class ProbeReport(_View):
    """What a kernel can do, and which faults that allows."""

    capabilities: tuple[Capability, ...]
    faults: tuple[FaultSupport, ...]


class StepView(_View):
    """One step of a plan: for people, and as the data the journal would keep."""

    kind: str
    description: str
    resources: tuple[str, ...]
    data: Mapping[str, Any]


class PlanView(_View):
    """What an injection would do. With anything `missing`, it would be refused."""

    fault: str
    parameters: Mapping[str, Any]
    target: str
    backend: str
    steps: tuple[StepView, ...]
    covers: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    operator_sees: str
    reversible: str
    missing: tuple[Missing, ...]
    risks: Mapping[str, str] = {}
    target_data: Mapping[str, Any] = {}


class InjectionList(_View):
    """Injections of one node, and whether `labctl stop` is in force there."""

    injections: tuple[InjectionView, ...]
    stopped: bool


class AuditEntry(_View):
    """One request that an agent was asked for a change. `result` is empty where the agent ended before it did."""

    number: int
    time_unix_s: float
    boot_id: str
    boottime_s: float
    who: str
    where: str
    method: str
    what: Mapping[str, Any]
    result: str
    message: str
    took_s: float


class AuditReport(_View):
    """The newest requests, oldest first; the number of the oldest that is kept; where the log is damaged."""

    entries: tuple[AuditEntry, ...]
    oldest: int
    problems: tuple[str, ...]


class ClockChange(_View):
    """The wall clock of a node just before and just after it was set, in Unix seconds."""

    before_unix_s: float
    after_unix_s: float
