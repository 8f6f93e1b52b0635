"""torn_write: of a write only the first sectors arrive, and the disk says that all did."""

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
from .disk_place import Chosen, DiskPlace, PlacedFault, place_of_target
from .layers import WRITES, base, device, layer, planted
from .places import UNIT_SECTORS

MAX_TORN = 2**18
"""Sectors: each block takes two lines of a table."""

_RISK = (
    "the last sectors of blocks that are written meanwhile keep their old content on the disk, without an error"
)


class TornWrite(PlacedFault):
    """Blocks of a file or range tear: the first `arriving` sectors of each 4 KiB are written, the rest stay as
    they were. The page cache has the whole block until it is read from the disk again, as after a power cut.
    """

    name: ClassVar[str] = "torn_write"
    summary: ClassVar[str] = "only the first sectors of each written block reach the disk"
    operator_sees: ClassVar[str] = (
        "no error and no line in any log; once a page is read from the disk again, as after a power cut, blocks "
        "are half new and half old, and fail their checksums"
    )
    by_default: ClassVar[Chosen] = "file"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"accept_data_loss": True},
        {"file": "/srv/data/**", "arriving": 1, "accept_data_loss": True},
        {"range": "2048+64", "accept_data_loss": True},
    )

    arriving: int = Field(default=4, ge=0, le=7, description="sectors of each 4 KiB block that are written")
    sectors: int = Field(
        default=0,
        ge=0,
        le=MAX_TORN,
        description="how many sectors of the file tear, in whole blocks; 0: all of it",
    )
    accept_data_loss: bool = Field(default=False, description="yes, data on the disk may be damaged for good")

    def sectors_wanted(self) -> int:
        return self.sectors

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.delay")

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        place = super().find_place(reader, facts)
        many = sum(p.length for p in place.pieces)
        if many > MAX_TORN:
            field = "range" if self.range else "file"
            raise Refusal(
                f"{field}: {many} sectors are too many", field=field, allowed=f"at most {MAX_TORN} sectors"
            )
        return place

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        true = base(place, tag)
        nothing = f"dm:{layer(tag, 'gate')} 0 0"
        media = (
            device(place, tag, "nil", "zero"),
            device(place, tag, "gate", "linear", f"dm:{layer(tag, 'nil')} 0"),
            device(place, tag, "keep", "delay", f"{true} 0 0 {nothing} {true} 0 0"),
            DmDevice(name=layer(tag, "torn"), table=lines_of(fill(self._torn(place, tag), place.size, "error"))),
        )
        return planted(place, tag, media, lambda start, length: _line(tag, start, length))

    def _torn(self, place: DiskPlace, tag: str) -> list[DmTarget]:
        """The first sectors of each block lead to the disk, the others to what keeps their old content."""
        lines = []
        for piece in place.pieces:
            for start in range(piece.start, piece.end, UNIT_SECTORS):
                end = min(start + UNIT_SECTORS, piece.end)
                cut = min(start + self.arriving, end)
                for first, last, over in ((start, cut, base(place, tag)), (cut, end, f"dm:{layer(tag, 'keep')}")):
                    if first < last:
                        lines.append(DmTarget(first, last - first, "linear", f"{over} {first}"))
        return lines

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of_target(target)
        return PlanNotes(
            backend="dm-delay with the writes of some sectors to dm-zero",
            covers=WRITES,
            not_covered=("blocks that the file gets from now on",) if place.file else (),
            warnings=(
                "reads see it only past the page cache: with O_DIRECT, after eviction, or after a power cut",
            ),
            risks={"data_loss": _RISK},
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        torn = passed(reader, layer(tag, "gate"))
        return Evidence(
            armed=is_armed(reader, place_of_target(target), lambda start, length: _line(tag, start, length)),
            hits=torn.writes,
            counters={"torn_writes": torn.writes, "sectors_that_did_not_arrive": torn.sectors_written},
            lost=(f"{torn.sectors_written} sectors of {torn.writes} writes did not arrive",)
            if torn.writes
            else (),
        )


def _line(tag: str, start: int, length: int) -> TableLine:
    return TableLine(start=start, length=length, kind="linear", args=f"dm:{layer(tag, 'torn')} {start}")
