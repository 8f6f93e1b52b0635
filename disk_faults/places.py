"""Which sectors go bad: from extents of a file or a range of a disk to places in a device's table. Pure."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from node_agent.errors import ConflictError, Refusal
from node_agent.host import SECTOR, DmTarget, Extent
from node_agent.steps.dm_names import holder_of
from node_agent.steps.dm_tables import place_of, touching

UNIT_SECTORS = 8
"""Sectors that go bad and heal together where nothing smaller is asked for: 4 KiB."""

MAX_SECTORS = 512
"""Each unit takes two devices and about 0.7 MiB of kernel memory."""

USABLE_FLAGS = frozenset({"last", "merged"})
"""FIEMAP flags that say nothing against the place given. Every other one does, also one not known here."""


class Piece(BaseModel):
    """A unit that goes bad. `start` and `length` are sectors of the device; `base` and `base_start` say where that
    is on the disk below; `offset` is its byte in the file, -1 where no file was asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    length: int
    base: str
    base_start: int
    offset: int = -1

    @property
    def end(self) -> int:
        """The first sector after it."""
        return self.start + self.length


@dataclass(frozen=True)
class Run:
    """Units of a file that lie one behind the other and may be chosen. `offset` in bytes, `start` in sectors."""

    offset: int
    start: int
    units: int


@dataclass
class Layout:
    """What of a file can go bad, and how many bytes cannot, by reason."""

    runs: list[Run] = field(default_factory=list)
    barred: Counter[str] = field(default_factory=Counter)

    @property
    def units(self) -> int:
        """How many units there are to choose from."""
        return sum(run.units for run in self.runs)

    def why_not(self) -> str:
        """The reasons against the rest, for a message."""
        return ", ".join(f"{reason}: {size} bytes" for reason, size in sorted(self.barred.items()))


def layout_of(extents: Sequence[Extent], size: int, unit: int, table: Sequence[DmTarget]) -> Layout:
    """Sort out the extents of a file of `size` bytes into units of `unit` sectors that have a place of their own.

    `table` is the live table of the disk, all linear.
    """
    found = Layout()
    step = unit * SECTOR
    mapped = 0
    for extent in extents:
        mapped += extent.length
        flags = extent.flags - USABLE_FLAGS
        if not flags and (extent.physical % step or extent.logical % step):
            flags = frozenset({"not_aligned"})
        if not flags and extent.physical == 0:  # never sector 0 by accident
            flags = frozenset({"no place"})
        if flags:
            found.barred[" and ".join(sorted(flags))] += extent.length
            continue
        length = min(extent.length, -(-(size - extent.logical) // step) * step)
        run = Run(extent.logical, extent.physical // SECTOR, max(0, length // step))
        parts = tuple(_on_lines(run, unit, table))
        found.runs += parts
        lost = run.units - sum(p.units for p in parts)
        if lost:
            found.barred["on two lines of the table"] += lost * step
    if size > mapped:
        found.barred["hole"] += size - mapped
    return found


def _on_lines(run: Run, unit: int, table: Sequence[DmTarget]) -> Iterator[Run]:
    """The parts of a run whose units lie on one line of the table each."""
    for line in table:
        low = max(0, -(-(line.start - run.start) // unit))
        high = min(run.units, (line.start + line.length - run.start) // unit)
        if low < high:
            yield Run(run.offset + low * unit * SECTOR, run.start + low * unit, high - low)


def dice(seed: int) -> random.Random:
    """Chance that can be repeated."""
    return random.Random(seed)  # noqa: S311


def choose(
    layout: Layout, count: int, unit: int, *, seed: int, table: Sequence[DmTarget], made: Mapping[str, str]
) -> tuple[Piece, ...]:
    """`count` different units of a layout, by seed; in the order of the disk.

    `made` are the devices of other injections (:func:`made_devices`). The same seed means the same place, also
    where one of them holds it: that is a :class:`ConflictError`.
    """
    chosen = (_unit(layout, number, unit) for number in dice(seed).sample(range(layout.units), count))
    pieces = []
    for offset, start in sorted(chosen, key=lambda place: place[1]):
        line = next(t for t in table if t.start <= start < t.start + t.length)
        holder = holder_of(line, made)
        if holder:
            raise ConflictError(
                f"file: sector {start} is held by {holder}; another seed takes another", field="file"
            )
        pieces.append(_piece(start, unit, table, offset))
    return tuple(pieces)


def everything(
    layout: Layout, unit: int, *, table: Sequence[DmTarget], made: Mapping[str, str]
) -> tuple[Piece, ...]:
    """All units of a layout, neighbours as one piece, in the order of the disk. Raises as :func:`choose` does."""
    pieces = []
    for run in sorted(layout.runs, key=lambda run: run.start):
        if not run.units:
            continue
        line = touching(table, run.start, run.start + 1)[0]
        holder = holder_of(line, made)
        if holder:
            raise ConflictError(f"file: sector {run.start} is held by {holder}", field="file")
        pieces.append(_piece(run.start, run.units * unit, table, run.offset))
    return tuple(pieces)


def _unit(layout: Layout, number: int, unit: int) -> tuple[int, int]:
    """Offset and sector of the unit of that number, counting through all runs."""
    left = number
    for run in layout.runs:
        if left < run.units:
            return run.offset + left * unit * SECTOR, run.start + left * unit
        left -= run.units
    raise IndexError(number)


def _piece(start: int, length: int, table: Sequence[DmTarget], offset: int = -1) -> Piece:
    line = next(t for t in table if t.start <= start < t.start + t.length)
    base, sector = place_of(line, start)
    return Piece(start=start, length=length, base=base, base_start=sector, offset=offset)


def parse_range(text: str) -> tuple[int, int]:
    """ "START+COUNT" as two numbers. Raises ValueError with what is allowed."""
    match = re.fullmatch(r"(\d{1,18})\+(\d{1,18})", text.strip())
    if not match or int(match[2]) == 0:
        raise ValueError(f"{text!r} is no range of sectors; allowed: START+COUNT, as in 2048+8")
    return int(match[1]), int(match[2])


def spans_of_range(
    start: int, count: int, table: Sequence[DmTarget], size: int, made: Mapping[str, str]
) -> tuple[Piece, ...]:
    """A range of a disk of `size` sectors as few pieces: one for each line of the table that it touches.

    Raises :class:`Refusal`, or :class:`ConflictError` where another injection holds a part.
    """
    end = start + count
    if end > size:
        raise Refusal(
            f"range: {start}+{count} ends at sector {end}, the disk at {size}",
            field="range",
            allowed=f"sectors 0 to {size - 1}",
        )
    pieces = []
    for line in touching(table, start, end):
        first, last = max(start, line.start), min(end, line.start + line.length)
        holder = holder_of(line, made)
        if holder:
            raise ConflictError(f"range: sector {first} is held by {holder}", field="range")
        pieces.append(_piece(first, last - first, table))
    return tuple(pieces)


def pieces_of_range(
    start: int, count: int, table: Sequence[DmTarget], size: int, made: Mapping[str, str]
) -> tuple[Piece, ...]:
    """The units of a range of a disk of `size` sectors.

    In a range of whole 4 KiB blocks they are blocks; otherwise each sector is a unit of its own. Raises
    :class:`Refusal`, or :class:`ConflictError` where another injection holds a part.
    """
    spans = spans_of_range(start, count, table, size, made)
    unit = UNIT_SECTORS if start % UNIT_SECTORS == 0 and count % UNIT_SECTORS == 0 else 1
    if count > (MAX_SECTORS if unit > 1 else MAX_SECTORS // UNIT_SECTORS):
        raise Refusal(
            f"range: {count} sectors in units of {unit} are too many",
            field="range",
            allowed=f"{MAX_SECTORS} sectors in whole 4 KiB blocks, or {MAX_SECTORS // UNIT_SECTORS} others",
        )
    for span in spans:
        if (span.start - start) % unit or (span.end - start) % unit:
            raise Refusal(
                f"range: a block at sector {span.start} lies on two lines of the table",
                field="range",
                allowed="a range within one line",
            )
    return tuple(_piece(sector, unit, table) for sector in range(start, start + count, unit))
