"""swap_thrash: memory goes to swap and comes back, again and again, because there is less of it than is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from disk_faults.data_disks import find_disk
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.scopes import cgroup_root
from node_agent.signs import Sign, rises
from node_agent.steps import Step
from node_agent.steps.swap_file import SwapFile

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
    numbers,
    stressor,
    whole_pages,
)

PAGE_KIB = 4
KINDS = ("ext4", "xfs")
_SPARE_MIB, _LEFT_MIB = 32, 16
READY_S = 110.0


class SwappingPlace(Target):
    """Where the swap file is to be, whose memory thrashes (no group: that of a process of ours), and the limit."""

    disk: str
    number: str
    mounted_at: str
    swap_mib: int
    group: Group | None
    root: str
    high: int
    swapped_before: int
    title: str

    def describe(self) -> str:
        return f"{self.title}, by a swap file of {self.swap_mib} MiB at {self.mounted_at}"

    def file(self, tag: str) -> str:
        """The swap file."""
        return f"{self.mounted_at.rstrip('/')}/swapfile.{tag}"


class SwapThrash(GroupFields, Fault):
    """Pages are written to swap and read back all the time: the working set is larger than the memory for it.

    A swap file is made on a data disk. Without a unit, control group or container a process of this injection uses
    `working_set_mib` and may have only `resident_mib` of it in RAM: everybody else meets a busy disk. With one,
    memory.high is set to `percent` of what it has, and it is that one whose pages go to swap and come back.
    """

    name: ClassVar[str] = "swap_thrash"
    summary: ClassVar[str] = "memory goes to swap and comes back all the time"
    operator_sees: ClassVar[str] = (
        "si and so of vmstat are high (pswpin and pswpout), major faults, a disk that is busy though nobody reads "
        "files, swap in use in free, and the memory and io pressure (PSI) high; the unit hardly gets on, "
        "with little CPU time and much waiting"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"unit": "cron", "percent": 50})

    disk: str = Field(
        default="", description="data disk for the swap file, by name or mount point; none: the only"
    )
    working_set_mib: int = Field(default=96, ge=16, le=1 << 15, description="no unit: so much is used, in MiB")
    resident_mib: int = Field(default=48, ge=8, le=1 << 15, description="no unit: so much of it may be in RAM")
    percent: int = Field(
        default=60, ge=10, le=95, description="of a unit: memory.high, in per cent of what it has in RAM now"
    )

    @model_validator(mode="after")
    def _does_not_fit(self) -> SwapThrash:
        if self.resident_mib >= self.working_set_mib:
            raise ValueError("nothing would be swapped; resident_mib has to be less than working_set_mib")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cgroup.memory", "memory.swap")

    def locate(self, reader: Reader, facts: Facts) -> SwappingPlace:
        disk = find_disk(reader, facts, self.disk)
        if disk.mount is None or disk.mount.fstype not in KINDS or "ro" in disk.mount.options.split(","):
            raise Refusal(
                f"disk: {disk.name} has no file system that a swap file can be on", field="disk",
                allowed=f"a disk that is mounted for writing, with {' or '.join(KINDS)}",
            )  # fmt: skip
        group, high, needed = None, self.resident_mib * MIB, self.working_set_mib
        title = f"{self.working_set_mib} MiB in {self.resident_mib} MiB of RAM"
        if self.names_a_group:
            group = find_group(reader, facts, self)
            kept = kept_bytes(reader, group)
            high, needed = whole_pages(kept * self.percent // 100), kept // MIB
            title = f"memory of {group.title}, {kept // KIB} KiB in {high // KIB} KiB of RAM"
            if high < MIB:
                raise Refusal(
                    f"percent: {group.title} has only {kept // KIB} KiB", field="percent",
                    allowed=f"a limit of {MIB // KIB} KiB or more",
                )  # fmt: skip
        size = needed + _SPARE_MIB
        room = reader.space.room(disk.mount.target).available // MIB
        if room < size + _LEFT_MIB:
            raise Refusal(
                f"disk: {disk.mount.target} has room for {room} MiB", field="disk",
                allowed=f"one with {size + _LEFT_MIB} MiB or more",
            )  # fmt: skip
        return SwappingPlace(
            disk=disk.name, number=disk.number, mounted_at=disk.mount.target, swap_mib=size, group=group,
            root=cgroup_root(facts), high=high, swapped_before=_swapped(reader), title=title,
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, SwappingPlace)
        path = target.file(tag)
        swap = SwapFile(path=path, mount=target.mounted_at, device=target.disk, size_mib=target.swap_mib)
        if target.group is None:
            payload = {
                "mode": "thrash", "root": target.root, "size_kib": self.working_set_mib * KIB,
                "high_kib": target.high // KIB,
            }  # fmt: skip
            title = f"use {target.title}"
            return (swap, stressor(tag, "memory", title, payload, claims=(NODE_MEMORY,), ready_s=READY_S))
        high = limit(target.group, "memory.high", target.high)
        return (swap, high, keeper(tag, target.group, (high,)))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, SwappingPlace)
        whose = target.group.title if target.group else "a process of this injection; others meet the busy disk"
        return PlanNotes(
            backend="swap file, memory.high",
            covers=(whose,),
            not_covered=("pages that are locked in memory, and the page cache: it is read again, not swapped",),
            warnings=(
                "everybody can swap while this stands: where the node is short of memory, others are swapped, too",
                "the recovery reads back all that is in the file: it takes as long as that takes",
            ),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        number = target.number if isinstance(target, SwappingPlace) else "*"
        when = "once the memory is used"
        return (
            rises("time that something waited for memory (microseconds)", "/proc/pressure/memory", 9, when),
            rises("sectors read from the disk", f"/sys/dev/block/{number}/stat", 2, when),
            rises("sectors written to the disk", f"/sys/dev/block/{number}/stat", 6, when),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, SwappingPlace)
        step = SwapFile(
            path=target.file(tag), mount=target.mounted_at, device=target.disk, size_mib=target.swap_mib
        )
        used = step.used_kib(reader)
        hits = max(0, _swapped(reader) - target.swapped_before)
        ended = end_of_helper(reader, target.root, tag)
        notes = [ended] if ended else []
        counters = {"swapped_in_pages": hits, "in_swap_kib": used or 0, **answers_of(reader, tag)}
        armed = used is not None and not ended
        if target.group:
            high = limit(target.group, "memory.high", target.high)
            if not high.stands(reader):
                there = reader.exists(high.path)
                notes.append(
                    f"somebody has changed {high.path}" if there else f"{target.group.title} does not run"
                )
                armed = armed and not there
        notes += [] if used is not None else [f"the kernel does not swap to {step.path} any more"]
        return Evidence(armed=armed, hits=hits, counters=counters, notes=tuple(notes))


def _swapped(reader: Reader) -> int:
    """Pages that were read back from any swap since the boot."""
    return numbers(reader, "/proc/vmstat").get("pswpin", 0)
