"""lost_flush: a disk whose cache says it was flushed, and was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import SECTOR, Reader
from node_agent.steps import Step
from node_agent.steps.dm_names import TableLine
from node_agent.steps.ram_disk import RamDisk

from .counting import is_armed, passed
from .disk_place import DiskPlace, PlacedFault, place_of_target
from .layers import WRITES, base, layer, planted

BLOCK = 4096

_BROKEN = "the disk below has failed a write of the cache, which refuses every access since"

_RISK = (
    "when the node loses power, restarts or crashes, what was written and flushed meanwhile may not be on the "
    "disk, and the file system may be damaged"
)


class LostFlush(PlacedFault):
    """Writes and flushes of the whole disk succeed, but go to memory first and reach the disk late, in any order.

    Nothing is lost as long as the node lives: reads see all that was written, and the recovery writes it to the
    disk; where the disk below takes no writes, it waits until it does. What is in the cache when the power goes is
    gone, whatever fsync has said.
    """

    name: ClassVar[str] = "lost_flush"
    summary: ClassVar[str] = "a data disk says it flushed its cache, and did not"
    operator_sees: ClassVar[str] = (
        "nothing at all until the power goes; afterwards transactions that were acknowledged are missing, files "
        "are older than fsync promised, a replica is ahead of its primary, or the file system needs repair"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"accept_data_loss": True},
        {"cache_mib": 16, "accept_data_loss": True},
    )

    cache_mib: int = Field(
        default=64, ge=4, le=65536,
        description="memory of the cache, in MiB; beyond half of it the oldest blocks are written to the disk",
    )  # fmt: skip
    accept_data_loss: bool = Field(default=False, description="yes, a power cut meanwhile costs data")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.writecache")

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        for field in ("file", "range"):
            if getattr(self, field):
                raise Refusal(f"{field}: a flush is of a whole disk", field=field, allowed="disk, or nothing")
        if self.cache_mib > facts.memory_mib // 4:
            raise Refusal(
                f"cache_mib: {self.cache_mib} MiB of a node that has {facts.memory_mib} MiB",
                field="cache_mib", allowed=f"at most {facts.memory_mib // 4}, a quarter of its memory",
            )  # fmt: skip
        return super().find_place(reader, facts)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        cache = RamDisk(name=layer(tag, "cache"), size_bytes=self.cache_mib * 2**20)
        return planted(
            place, tag, (cache,), lambda start, length: _line(place, tag, start, length),
            farewell=("flush", "flush_on_suspend"),
        )  # fmt: skip

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="dm-writecache in memory",
            covers=(*WRITES, "fsync", "fdatasync", "sync", "O_SYNC"),
            warnings=("the loss shows only when the power goes: labctl inject power_loss, or pull the plug",),
            risks={"data_loss": _RISK},
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of_target(target)
        cached, writes, error = _cache(reader, place, tag)
        on_disk = passed(reader, layer(tag, "below"))
        return Evidence(
            armed=is_armed(reader, place, lambda start, length: _line(place, tag, start, length)),
            hits=writes,
            counters={
                "writes": writes,
                "bytes_only_in_memory": cached * BLOCK,
                "bytes_on_disk": on_disk.sectors_written * SECTOR,
            },
            notes=(_BROKEN,) if error else (),
        )


def _cache(reader: Reader, place: DiskPlace, tag: str) -> tuple[int, int, bool]:
    """Blocks that are in the cache now, writes so far, and whether it has given up.

    Source of the fields: Documentation/admin-guide/device-mapper/writecache.rst; the counts came with Linux 5.15.
    """
    for info in reader.dm.list():
        if info.name.startswith(f"{tag}-"):
            continue
        for line in reader.dm.status(info.name):
            words = line.args.split()
            if line.kind == "writecache" and len(words) >= 4 and _leads_to(reader, info.name, place, tag):
                total, free = int(words[1]), int(words[2])
                return total - free, int(words[6]) if len(words) > 6 else total - free, words[0] != "0"
    return 0, 0, False


def _leads_to(reader: Reader, name: str, place: DiskPlace, tag: str) -> bool:
    below = reader.dm.info(layer(tag, "below"))
    return below is not None and any(below.number in line.args.split() for line in reader.dm.table(name))


def _line(place: DiskPlace, tag: str, start: int, length: int) -> TableLine:
    cache = f"loop:{RamDisk(name=layer(tag, 'cache'), size_bytes=1).path}"
    under = base(place, tag)
    return TableLine(start=start, length=length, kind="writecache", args=f"s {under} {cache} {BLOCK} 0")
