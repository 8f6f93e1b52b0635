"""flush_error: a disk takes writes, but fails to flush its cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import DmTarget, Reader
from node_agent.signs import Sign
from node_agent.steps import Step
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_names import TableLine, lines_of
from node_agent.steps.dm_tables import put_in
from node_agent.steps.loop_device import LoopDevice

from .counting import is_armed, passed
from .disk_place import DiskPlace, PlacedFault, place_of_target
from .layers import base, device, layer, planted
from .places import UNIT_SECTORS
from .queue_log import logged, queue_sign


class FlushError(PlacedFault):
    """Flushes of the whole disk answer EIO; reads and writes go well, and what was written is on the disk.

    A flush has no place, so there is no file or range of it.
    """

    name: ClassVar[str] = "flush_error"
    summary: ClassVar[str] = "a data disk fails to flush its cache; reads and writes go well"
    operator_sees: ClassVar[str] = (
        "fsync answers EIO although no write failed; 'I/O error, dev …, sector … op 0x1:(WRITE) … phys_seg 0' in "
        "the kernel log; file systems go on"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"disk": "/srv/data"})

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.delay", "dm.flakey_error_writes", "loop.direct_io")

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        for field in ("file", "range"):
            if getattr(self, field):
                raise Refusal(f"{field}: a flush is of a whole disk", field=field, allowed="disk, or nothing")
        return super().find_place(reader, facts)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        media = (
            device(place, tag, "nil", "zero"),
            DmDevice(name=layer(tag, "media"), table=lines_of(_media(place, tag))),
            device(place, tag, "gate", "linear", f"dm:{layer(tag, 'media')} 0"),
            LoopDevice(over=layer(tag, "gate")),
        )
        return planted(place, tag, media, lambda start, length: _line(target, tag, start, length))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="dm-delay with flushes to dm-flakey",
            covers=("fsync", "fdatasync", "sync", "syncfs", "msync", "O_SYNC", "the journal"),
            not_covered=(
                "writes with FUA: the write itself is durable",
                "flushes that come with data, as commits of a journal do: device mapper drops their error",
            ),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return (queue_sign("WRITE", "once something is flushed"),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of_target(target)
        failed = passed(reader, layer(tag, "gate"))
        lines, gap = logged(reader, layer(tag, "gate"), (), log_mark)
        return Evidence(
            armed=is_armed(reader, place, lambda start, length: _line(target, tag, start, length)),
            hits=failed.writes + failed.flushes,
            counters={"failed_flushes": failed.writes + failed.flushes},
            log=tuple(lines),
            log_gap=gap,
        )


def _media(place: DiskPlace, tag: str) -> tuple[DmTarget, ...]:
    """Zeros, but for one block in the middle that leads to the disk and fails writes.

    A device gets flushes only where something below it has a cache, as the disk has and zeros have not; each line
    gets one, and that of the block fails it. Curious readers such as blkid find zeros.
    """
    middle = place.size // 2 // UNIT_SECTORS * UNIT_SECTORS
    args = f"{base(place, tag)} {middle} 0 1 1 error_writes"
    zeros = (DmTarget(0, place.size, "linear", f"dm:{layer(tag, 'nil')} 0"),)
    return put_in(zeros, [DmTarget(middle, UNIT_SECTORS, "flakey", args)])


def _line(target: Target, tag: str, start: int, length: int) -> TableLine:
    """Reads and writes to the disk, flushes to the loop device."""
    well, ill = f"{base(place_of_target(target), tag)} {start} 0", f"loop:{layer(tag, 'gate')} {start} 0"
    return TableLine(start=start, length=length, kind="delay", args=f"{well} {well} {ill}")
