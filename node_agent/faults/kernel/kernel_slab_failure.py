"""kernel_slab_failure: small allocations in the kernel fail for a process. Facility: failslab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import capability
from node_agent.steps import Step

from .kernel_facility import (
    REMEDY,
    Interval,
    Percent,
    Pid,
    Times,
    Unit,
    facility_evidence,
    facility_steps,
    try_facility,
    victims_of,
)
from .victims import Victims, find_victims, process_notes

_FACILITY = "failslab"


class KernelSlabFailure(Fault):
    """Calls of a process find no memory in the kernel for small objects: inodes, sockets, path names, pipes.

    The kernel's own facility failslab, with its task filter: kmalloc and kmem_cache_alloc in the context of the
    target fail, and the system call answers ENOMEM, or whatever its error path makes of it.
    """

    name: ClassVar[str] = "kernel_slab_failure"
    summary: ClassVar[str] = "small allocations in the kernel fail for a process"
    operator_sees: ClassVar[str] = "ENOMEM from calls that take next to no memory, with plenty of it free"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"pid": 700},
        {"unit": "victim", "probability_percent": 100, "times": 3},
    )

    pid: Pid = 0
    unit: Unit = ""
    probability_percent: Percent = 10
    interval: Interval = 1
    times: Times = 0
    space_bytes: int = Field(default=0, ge=0, le=2**30, description="so many bytes are granted before any failure")
    atomic_only: bool = Field(default=False, description="only allocations that must not wait for memory")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("kernel.failslab")

    def locate(self, reader: Reader, facts: Facts) -> Victims:
        return find_victims(reader, self.pid, self.unit)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Victims)
        own = (("ignore-gfp-wait", "Y" if self.atomic_only else "N", "Y"), ("cache-filter", "N", "N"))
        return facility_steps(_FACILITY, self, tag, target.flags(), by_task=True, space=self.space_bytes, own=own)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return process_notes(
            _FACILITY, ("kmalloc", "kmem_cache_alloc"), "allocations with __GFP_NOFAIL never fail"
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return facility_evidence(reader, _FACILITY, self, log_mark, victims_of(reader))


@capability("kernel.failslab", remedy=REMEDY)
def probe(host: Host) -> None:
    """A dial of failslab can be turned."""
    try_facility(host, _FACILITY)
