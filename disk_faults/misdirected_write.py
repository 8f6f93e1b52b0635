"""misdirected_write: a write lands at another place of the disk, and the disk says that all is well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import DmTarget, Reader
from node_agent.steps import Step
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_names import TableLine, lines_of
from node_agent.steps.dm_tables import fill

from .counting import is_armed, passed
from .data_disks import DataDisk
from .disk_place import Chosen, DiskPlace, PlacedFault, place_of_target
from .layers import WRITES, base, device, layer, planted
from .places import UNIT_SECTORS, Piece, parse_range, spans_of_range

MAX_MISDIRECTED = 512

_RISK = (
    "the place where the writes land loses what it had, and the place they were meant for keeps its old content"
)


class MisdirectedWrite(PlacedFault):
    """Writes of blocks of a file land in other blocks of the same file; or those of a range, where `to` says.

    Reads are not misdirected: they find old content at the right place, and the write at the wrong one.
    """

    name: ClassVar[str] = "misdirected_write"
    summary: ClassVar[str] = "writes to some blocks land at another place of the disk"
    operator_sees: ClassVar[str] = (
        "no error and no line in any log; once pages are read from the disk again, one place has old content and "
        "another has what belongs elsewhere: checksums that include the address fail at both"
    )
    by_default: ClassVar[Chosen] = "file"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"accept_data_loss": True},
        {"file": "/srv/data/**", "sectors": 16, "accept_data_loss": True},
        {"range": "2048+16", "to": 4096, "accept_data_loss": True},
    )

    sectors: int = Field(
        default=UNIT_SECTORS, ge=1, le=MAX_MISDIRECTED,
        description="how many sectors of the file are hit, in whole blocks; as many others receive",
    )  # fmt: skip
    to: int = Field(default=-1, ge=-1, lt=2**53, description="with range: the sector where its writes land")
    accept_data_loss: bool = Field(default=False, description="yes, data on the disk are overwritten for good")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.delay")

    def sectors_wanted(self) -> int:
        blocks = -(-self.sectors // UNIT_SECTORS)
        return 2 * blocks * UNIT_SECTORS

    def in_range(self, disk: DataDisk, made: Mapping[str, str]) -> tuple[Piece, ...]:
        start, count = parse_range(self.range)
        if self.to < 0 or (self.to < start + count and start < self.to + count):
            raise Refusal(
                f"to: {self.to} is no place outside of the range",
                field="to",
                allowed="a sector outside of the range",
            )
        meant = spans_of_range(start, count, disk.table, disk.size, made)
        lands = spans_of_range(self.to, count, disk.table, disk.size, made)
        if len(meant) + len(lands) > 2:
            raise Refusal(
                "range: it lies on two lines of the table", field="range", allowed="a range within one line"
            )
        return (*meant, *lands)

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        """The pieces that are hit. Those that receive are in `detail`: device and sector."""
        found = super().find_place(reader, facts)
        if self.range:
            hit, lands = found.pieces[:1], found.pieces[1:]
        else:
            hit, lands = found.pieces[0::2], found.pieces[1::2]
        detail = [number for piece in lands for number in (*map(int, piece.base.split(":")), piece.base_start)]
        return found.model_copy(update={"pieces": hit, "detail": tuple(detail)})

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        true = base(place, tag)
        media = (
            DmDevice(name=layer(tag, "gate"), table=lines_of(fill(_lands(place), place.size, "error"))),
            device(place, tag, "astray", "delay", f"{true} 0 0 dm:{layer(tag, 'gate')} 0 0 {true} 0 0"),
        )
        return planted(place, tag, media, lambda start, length: _line(tag, start, length))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of_target(target)
        pairs = zip(place.pieces, _lands(place), strict=True)
        return PlanNotes(
            backend="dm-delay with writes to dm-linear at another place",
            covers=WRITES,
            not_covered=("blocks that the file gets from now on",) if place.file else (),
            warnings=tuple(
                f"what is written to sector {piece.start} lands at device {line.args.replace(' ', ', sector ')}"
                for piece, line in pairs
            )[:8],
            risks={"data_loss": _RISK},
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        astray = passed(reader, layer(tag, "gate"))
        return Evidence(
            armed=is_armed(reader, place_of_target(target), lambda start, length: _line(tag, start, length)),
            hits=astray.writes,
            counters={"misdirected_writes": astray.writes, "misdirected_sectors": astray.sectors_written},
            lost=(f"{astray.sectors_written} sectors were overwritten by writes meant for another place",)
            if astray.writes
            else (),
        )


def _lands(place: DiskPlace) -> list[DmTarget]:
    """For each piece the line that leads its writes astray."""
    numbers = iter(place.detail)
    return [
        DmTarget(piece.start, piece.length, "linear", f"{major}:{minor} {sector}")
        for piece, major, minor, sector in zip(place.pieces, numbers, numbers, numbers, strict=False)
    ]


def _line(tag: str, start: int, length: int) -> TableLine:
    return TableLine(start=start, length=length, kind="linear", args=f"dm:{layer(tag, 'astray')} {start}")
