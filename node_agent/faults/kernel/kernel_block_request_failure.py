"""kernel_block_request_failure: requests to a disk fail as they enter the block layer (fail_make_request)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from disk_faults.data_disks import find_disk
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import capability
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue

from .kernel_facility import (
    REMEDY,
    Interval,
    Percent,
    Times,
    facility_evidence,
    facility_steps,
    try_facility,
)

_FACILITY = "fail_make_request"


class FlaggedDisk(Target):
    """A data disk and the file that makes its requests victims."""

    disk: str
    flag: str
    mounted_at: str

    def describe(self) -> str:
        return f"requests to {self.disk}" + (f" ({self.mounted_at})" if self.mounted_at else "")


class KernelBlockRequestFailure(Fault):
    """Reads and writes of a data disk fail with EIO before they reach it, whoever asks.

    The kernel's own facility fail_make_request, for one block device (/sys/block/NAME/make-it-fail).
    """

    name: ClassVar[str] = "kernel_block_request_failure"
    summary: ClassVar[str] = "reads and writes of a data disk fail where they enter the block layer"
    operator_sees: ClassVar[str] = "EIO from any file of the disk now and then; a file system that goes read-only"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"disk": "data", "probability_percent": 100, "times": 2},
    )

    disk: str = Field(default="", description="data disk by name or mount point; none: the only one")
    probability_percent: Percent = 10
    interval: Interval = 1
    times: Times = 0
    space_bytes: int = Field(default=0, ge=0, le=2**30, description="so many bytes pass before any failure")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("kernel.fail_make_request")

    def locate(self, reader: Reader, facts: Facts) -> FlaggedDisk:
        disk = find_disk(reader, facts, self.disk)
        flag = f"/sys/block/dm-{disk.number.partition(':')[2]}/make-it-fail"
        return FlaggedDisk(disk=disk.name, flag=flag, mounted_at=disk.mount.target if disk.mount else "")

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, FlaggedDisk)
        flag = FileValue(path=target.flag, value="1", default="0", exclusive=True)
        return facility_steps(_FACILITY, self, tag, flag, by_task=False, space=self.space_bytes)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, FlaggedDisk)
        where = target.mounted_at
        lasting = f"a file system at {where} that goes read-only or shuts down after a failed write stays so"
        return PlanNotes(
            backend=_FACILITY,
            covers=("every read, write and flush of the disk",),
            not_covered=("what is in the page cache already",),
            warnings=(lasting,) if where else (),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, FlaggedDisk)
        flagged = int(reader.exists(target.flag) and reader.read_text(target.flag).strip() == "1")
        return facility_evidence(reader, _FACILITY, self, log_mark, ("victim disks", flagged))


@capability("kernel.fail_make_request", remedy=REMEDY)
def probe(host: Host) -> None:
    """A dial of fail_make_request can be turned."""
    try_facility(host, _FACILITY)
