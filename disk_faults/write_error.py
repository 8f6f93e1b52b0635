"""write_error: writes fail, on a whole disk or in a part of it, while reads go well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.dm_names import TableLine
from node_agent.steps.loop_device import LoopDevice

from .counting import is_armed, passed
from .disk_place import PlacedFault, place_of_target
from .layers import base, device, layer, planted
from .queue_log import logged, queue_sign

_RISK = (
    "a write that fails is not on the disk, and what the page cache had of it is dropped after fsync has said so"
)

_WARNING = "what fails to be written is not on the disk; after fsync has said so once, the page cache forgets it"


class WriteError(PlacedFault):
    """Writes answer EIO and change nothing; reads and flushes go well.

    A buffered write succeeds, and the error comes with the next fsync, once; direct writes fail themselves.
    """

    name: ClassVar[str] = "write_error"
    summary: ClassVar[str] = "writes to a data disk, or a part of it, fail; reads go well"
    operator_sees: ClassVar[str] = (
        "fsync answers EIO once and then 0, direct writes answer EIO, reads are well; 'I/O error, dev …, sector … "
        "op 0x1:(WRITE)' and 'lost async page write' in the kernel log; a file system stops whose journal is hit"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"file": "/srv/data/**"},
        {"range": "2048+64"},
    )

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.delay", "dm.flakey_error_writes", "loop.direct_io")

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        media = (
            device(place, tag, "nil", "zero"),
            device(place, tag, "media", "flakey", f"dm:{layer(tag, 'nil')} 0 0 1 1 error_writes"),
            device(place, tag, "gate", "linear", f"dm:{layer(tag, 'media')} 0"),
            LoopDevice(over=layer(tag, "gate")),
        )
        return planted(place, tag, media, lambda start, length: _line(target, tag, start, length))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of_target(target)
        known = () if place.file == "" else ("blocks that the file gets from now on",)
        return PlanNotes(
            backend="dm-delay with writes to dm-flakey",
            covers=(
                "write",
                "pwrite64",
                "writev",
                "io_uring",
                "mmap and msync",
                "write-back",
                "O_DIRECT",
                "journal",
            ),
            not_covered=(*known, "discards: they go to the disk"),
            warnings=(_WARNING,),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return (
            queue_sign("WRITE", "once something is written"),
            in_log(
                "the file system or the page cache tells what it lost",
                "lost async page write|error .*writing to inode|writeback error|log I/O error|Aborting journal",
                "once pages are written back",
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of_target(target)
        failed = passed(reader, layer(tag, "gate"))
        lines, gap = logged(reader, layer(tag, "gate"), (), log_mark)
        size = failed.sectors_written
        return Evidence(
            armed=is_armed(reader, place, lambda start, length: _line(target, tag, start, length)),
            hits=failed.writes,
            counters={"failed_writes": failed.writes, "failed_sectors": size},
            log=tuple(lines),
            log_gap=gap,
            lost=(f"{failed.writes} writes of {size} sectors in all failed, and are not on the disk",)
            if failed.writes
            else (),
        )


def _line(target: Target, tag: str, start: int, length: int) -> TableLine:
    """Reads and flushes to the disk, writes to the loop device."""
    well, ill = f"{base(place_of_target(target), tag)} {start} 0", f"loop:{layer(tag, 'gate')} {start} 0"
    return TableLine(start=start, length=length, kind="delay", args=f"{well} {ill} {well}")
