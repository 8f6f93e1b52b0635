"""silent_corruption: bytes of a disk change, and nothing says so."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import SECTOR, DmTarget, Reader
from node_agent.steps import Step
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_names import TableLine, lines_of
from node_agent.steps.dm_tables import fill, put_in

from .counting import is_armed, passed
from .data_disks import DataDisk
from .disk_place import Chosen, DiskPlace, PlacedFault, place_of_target
from .layers import READS, WRITES, base, device, layer, planted, snapshots, straight
from .places import MAX_SECTORS, UNIT_SECTORS, Piece, dice, parse_range, pieces_of_range

_RISK_WRITE = "what is written to these sectors is changed on its way to the disk, for good, without an error"


class SilentCorruption(PlacedFault):
    """One byte of each chosen block is another one, at a place that the seed decides.

    On `read` the disk itself stays right: the byte changes on its way up, the same way every time, and a rewrite
    of the block heals it, as it does with bits that have rotted, unless `permanent`. On `write` it changes on its
    way down, and stays on the disk.
    """

    name: ClassVar[str] = "silent_corruption"
    summary: ClassVar[str] = "bytes change on read or on write, without any error"
    operator_sees: ClassVar[str] = (
        "wrong data and failing checksums of applications, no I/O error and no line in the kernel log; the disk's "
        "own counters are clean"
    )
    by_default: ClassVar[Chosen] = "file"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"file": "/srv/data/**", "sectors": 16, "seed": 7},
        {"permanent": True},
        {"what": "writes", "accept_data_loss": True},
    )

    sectors: int = Field(
        default=UNIT_SECTORS, ge=1, le=MAX_SECTORS,
        description="how many 512-byte sectors of the file are hit, in whole blocks; one byte of a block changes",
    )  # fmt: skip
    what: Literal["reads", "writes"] = Field(default="reads", description="when the byte changes")
    permanent: bool = Field(default=False, description="on reads: a rewrite does not heal")
    accept_data_loss: bool = Field(default=False, description="yes, data on the disk may be changed for good")

    def sectors_wanted(self) -> int:
        return self.sectors

    def in_range(self, disk: DataDisk, made: Mapping[str, str]) -> tuple[Piece, ...]:
        start, count = parse_range(self.range)
        return pieces_of_range(start, count, disk.table, disk.size, made)

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        if self.what == "writes":
            return facts.missing("dm.flakey_corrupt", "dm.delay")
        return facts.missing("dm.flakey_corrupt", *(() if self.permanent else ("dm.snapshot",)))

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        """Detail: for each piece the sector, the byte in it (from 1, as dm-flakey counts) and its new value."""
        place = super().find_place(reader, facts)
        chance = dice(self.seed)
        detail = [number for piece in place.pieces for number in _byte(reader, place, piece, chance)]
        return place.model_copy(update={"detail": tuple(detail)})

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        true = base(place, tag)
        way = "w" if self.what == "writes" else "r"
        flipped = [
            DmTarget(sector, 1, "flakey", f"dm:{layer(tag, 'gate')} {sector} 0 1 {_flip(nth, way, value)}")
            for sector, nth, value in _bytes(place)
        ]
        under = fill(straight(place, true), place.size, "error")
        rot = DmDevice(name=layer(tag, "rot"), table=lines_of(put_in(under, flipped)))
        media: tuple[Step, ...] = (device(place, tag, "gate", "linear", f"{true} 0"), rot)
        if self.what == "writes":
            args = f"{true} 0 0 dm:{layer(tag, 'rot')} 0 0 {true} 0 0"
            media = (*media, device(place, tag, "astray", "delay", args))
        if self._heals:
            media = (*media, *snapshots(place, tag, f"dm:{layer(tag, 'rot')}"))
        return planted(place, tag, media, lambda s, n: self._line(place, tag, s, n), drop_pages=True)

    @property
    def _heals(self) -> bool:
        return self.what == "reads" and not self.permanent

    def _line(self, place: DiskPlace, tag: str, start: int, length: int) -> TableLine:
        over = layer(tag, "astray" if self.what == "writes" else "rot")
        if self._heals:
            number = next(n for n, piece in enumerate(place.pieces) if piece.start == start)
            over = layer(tag, f"snap-{number}")
        return TableLine(start=start, length=length, kind="linear", args=f"dm:{over} {start}")

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of_target(target)
        warnings = [
            f"byte {nth - 1} of sector {sector} of {place.disk} reads as {value:#04x}"
            if self.what == "reads"
            else f"byte {nth - 1} of sector {sector} of {place.disk} is written as {value:#04x}"
            for sector, nth, value in _bytes(place)
        ]
        known = ["pages that a process has mapped or dirties all the time: they cannot be evicted"]
        if self._heals:
            known.append("a direct write of less than the block takes the changed byte along to the disk")
        return PlanNotes(
            backend="dm-flakey" + (" under dm-snapshot" if self._heals else ""),
            covers=READS if self.what == "reads" else WRITES,
            not_covered=tuple(known),
            warnings=tuple(warnings[:8]),
            risks={"data_loss": _RISK_WRITE} if self.what == "writes" else {},
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of_target(target)
        changed = passed(reader, layer(tag, "gate"))
        hits = changed.writes if self.what == "writes" else changed.reads
        lost = f"{hits} writes were changed on their way to the disk"
        return Evidence(
            armed=is_armed(reader, place, lambda start, length: self._line(place, tag, start, length)),
            hits=hits,
            counters={f"changed_{self.what}": hits},
            lost=(lost,) if hits and self.what == "writes" else (),
        )


def _flip(nth: int, way: str, value: int) -> str:
    """Features of dm-flakey (Documentation/admin-guide/device-mapper/dm-flakey.rst)."""
    return f"5 corrupt_bio_byte {nth} {way} {value} 0"


def _byte(reader: Reader, place: DiskPlace, piece: Piece, chance: random.Random) -> tuple[int, int, int]:
    """Sector, place in it and new value of the byte of a piece, never the one it has.

    Raises ConflictError where the piece cannot be read as it is.
    """
    at = chance.randrange(piece.length * SECTOR)
    try:
        content = reader.disk.direct_read(place.node, piece.start * SECTOR, piece.length * SECTOR)
    except OSError as error:
        raise ConflictError(f"sector {piece.start} cannot be read as it is: {error.strerror}") from error
    sector, nth = divmod(at, SECTOR)
    return piece.start + sector, nth + 1, content[at] ^ (1 << chance.randrange(8))


def _bytes(place: DiskPlace) -> Iterator[tuple[int, int, int]]:
    numbers = iter(place.detail)
    return zip(numbers, numbers, numbers, strict=False)
