"""kernel_page_alloc_failure: the kernel has no pages for a process. Facility: fail_page_alloc."""

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

_FACILITY = "fail_page_alloc"


class KernelPageAllocFailure(Fault):
    """A process finds no whole pages in the kernel: page cache, page tables, pipe buffers, its own memory.

    The kernel's own facility fail_page_alloc, with its task filter.
    """

    name: ClassVar[str] = "kernel_page_alloc_failure"
    summary: ClassVar[str] = "page allocations in the kernel fail for a process"
    operator_sees: ClassVar[str] = (
        "ENOMEM from reads, writes and mmap, page faults that are tried over and over, with plenty of memory free"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"pid": 700},
        {"unit": "victim.service", "min_order": 1, "interval": 2},
    )

    pid: Pid = 0
    unit: Unit = ""
    probability_percent: Percent = 10
    interval: Interval = 1
    times: Times = 0
    min_order: int = Field(default=0, ge=0, le=10, description="smallest order that fails: 2^order pages at once")
    user_pages: bool = Field(default=True, description="also pages for user space and the page cache")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("kernel.fail_page_alloc")

    def locate(self, reader: Reader, facts: Facts) -> Victims:
        return find_victims(reader, self.pid, self.unit)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Victims)
        own = (
            ("ignore-gfp-wait", "N", "Y"),
            ("ignore-gfp-highmem", "N" if self.user_pages else "Y", "Y"),
            ("min-order", str(self.min_order), "1"),
        )
        return facility_steps(_FACILITY, self, tag, target.flags(), by_task=True, own=own)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return process_notes(
            _FACILITY,
            ("alloc_pages", "page faults", "page cache", "slab growth"),
            "allocations with __GFP_NOFAIL, and pages that a CPU has in stock for bulk users, do not fail",
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return facility_evidence(reader, _FACILITY, self, log_mark, victims_of(reader))


@capability("kernel.fail_page_alloc", remedy=REMEDY)
def probe(host: Host) -> None:
    """A dial of fail_page_alloc can be turned."""
    try_facility(host, _FACILITY)
