"""disk_gone: a disk that answers nothing any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.dm_names import TableLine
from node_agent.steps.file_value import FileValue
from node_agent.steps.loop_device import LoopDevice

from .counting import is_armed, passed
from .data_disks import find_disk
from .disk_place import DiskPlace, PlacedFault, place_of_target
from .layers import READS, WRITES, care, device, layer, planted
from .queue_log import STOPPED, logged


class DiskGone(PlacedFault):
    """Every read, write and flush of the disk fails, and its file system stops.

    `scsi`: the kernel's own SCSI layer takes the disk offline, as it does with one that no longer answers. `dm`: a
    table that fails everything, for disks of other kinds. `auto` takes scsi where the disk is one.
    """

    name: ClassVar[str] = "disk_gone"
    summary: ClassVar[str] = "a data disk answers nothing any more: all I/O fails at once"
    operator_sees: ClassVar[str] = (
        "'rejecting I/O to offline device' or I/O errors for every request, the file system aborts its journal or "
        "shuts down, services on it fail; what is cached can still be read"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"backend": "dm"})

    backend: Literal["auto", "scsi", "dm"] = Field(default="auto", description="how the disk is taken away")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.error", "loop.direct_io")

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        for field in ("file", "range"):
            if getattr(self, field):
                raise Refusal(
                    f"{field}: a disk is gone as a whole", field=field,
                    allowed="disk, or nothing; latent_sector_error and write_error are for parts",
                )  # fmt: skip
        place = super().find_place(reader, facts)
        numbers = {line.args.split()[0] for line in find_disk(reader, facts, self.disk).table}
        states = [f"/sys/dev/block/{number}/device/state" for number in sorted(numbers)]
        scsi = all(reader.exists(path) and reader.read_text(path).strip() == "running" for path in states)
        if self.backend == "scsi" and not scsi:
            raise Refusal(
                f"backend: {place.disk} is not on SCSI disks that run", field="backend", allowed="auto, dm"
            )
        if self.backend == "dm" or not scsi:
            return place.model_copy(update={"backend": "dm"})
        detail = tuple(int(part) for number in sorted(numbers) for part in number.split(":"))
        return place.model_copy(update={"backend": "scsi", "detail": detail})

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        if place.backend == "scsi":
            return (
                *care(place, tag),
                *(FileValue(path=path, value="offline", default="running") for path in _states(place)),
            )
        media = (
            device(place, tag, "media", "error"),
            device(place, tag, "gate", "linear", f"dm:{layer(tag, 'media')} 0"),
            LoopDevice(over=layer(tag, "gate")),
        )
        return planted(place, tag, media, lambda start, length: _line(tag, start, length))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of_target(target)
        return PlanNotes(
            backend="SCSI device offline" if place.backend == "scsi" else "dm-error below a loop device",
            covers=tuple(dict.fromkeys((*READS, *WRITES, "fsync", "discards"))),
            not_covered=("reads of what is in the page cache",),
            warnings=(
                "dirty pages that are written back meanwhile are lost; the file system is repaired at the end",
            ),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return (
            in_log(
                "the kernel rejects or fails requests",
                r"rejecting I/O to offline device|device offline error|I/O error, dev ",
                "once the disk is used",
            ),
            in_log(
                "the file system stops",
                STOPPED,
                "at its next write",
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of_target(target)
        if place.backend == "scsi":
            return _offline(reader, place, log_mark)
        failed = passed(reader, layer(tag, "gate"))
        lines, gap = logged(reader, layer(tag, "gate"), (), log_mark)
        return Evidence(
            armed=is_armed(reader, place, lambda start, length: _line(tag, start, length)),
            hits=failed.reads + failed.writes,
            counters={"failed_reads": failed.reads, "failed_writes": failed.writes},
            log=tuple(lines),
            log_gap=gap,
            lost=(f"{failed.writes} writes failed, and are not on the disk",) if failed.writes else (),
        )


def _states(place: DiskPlace) -> tuple[str, ...]:
    numbers = iter(place.detail)
    return tuple(
        f"/sys/dev/block/{major}:{minor}/device/state" for major, minor in zip(numbers, numbers, strict=False)
    )


def _offline(reader: Reader, place: DiskPlace, log_mark: int) -> Evidence:
    states = [reader.read_text(path).strip() for path in _states(place)]
    records, lost = reader.log.since(log_mark)
    names = [_name(reader, path) for path in _states(place)]
    lines = [r.text for r in records if any(f"I/O error, dev {name}," in r.text for name in names)]
    lines += [r.text for r in records if "rejecting I/O to offline device" in r.text]
    return Evidence(
        armed=all(state == "offline" for state in states),
        hits=len(lines),
        counters={"lines_of_the_kernel": len(lines)},
        log=tuple(lines[-20:]),
        log_gap=lost > 0,
        notes=("hits are lines of the kernel log, which leaves some out",),
    )


def _name(reader: Reader, state: str) -> str:
    """What the kernel calls a disk in its log (Documentation/ABI/stable/sysfs-block)."""
    lines = reader.read_text(state.replace("/device/state", "/uevent")).splitlines()
    return next((line.removeprefix("DEVNAME=") for line in lines if line.startswith("DEVNAME=")), "")


def _line(tag: str, start: int, length: int) -> TableLine:
    return TableLine(start=start, length=length, kind="linear", args=f"loop:{layer(tag, 'gate')} {start}")
