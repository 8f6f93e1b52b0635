"""What the kernel shows of a fault in a disk's way: its lines in the live table, and how much I/O went through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from node_agent.host import DmTarget, Reader
from node_agent.steps.dm_names import TableLine, levels, numbers, resolved
from node_agent.steps.dm_tables import touching

from .disk_place import DiskPlace
from .layers import Line


@dataclass(frozen=True)
class Passed:
    """I/O that a device has handed on. Sectors of 512 bytes."""

    reads: int = 0
    writes: int = 0
    sectors_read: int = 0
    sectors_written: int = 0
    flushes: int = 0


def passed(reader: Reader, name: str) -> Passed:
    """What a device-mapper device has handed to the device below it; nothing where it is gone.

    Device mapper counts what it hands on, not what its own error target answers: so a layer that is asked about
    stands above the one that fails. Source: Documentation/block/stat.rst.
    """
    info = reader.dm.info(name)
    if info is None:
        return Passed()
    numbers_ = [int(word) for word in reader.read_text(f"/sys/dev/block/{info.number}/stat").split()]
    numbers_ += [0] * (17 - len(numbers_))
    return Passed(
        reads=numbers_[0],
        sectors_read=numbers_[2],
        writes=numbers_[4],
        sectors_written=numbers_[6],
        flushes=numbers_[15],
    )


def is_armed(reader: Reader, place: DiskPlace, line: Line) -> bool:
    """Whether the fault's lines stand in the disk's table, on the level that is theirs."""
    if reader.dm.info(place.disk) is None:
        return False
    if not place.pieces:
        return any(
            _hold(reader, (line(0, place.size),), reader.dm.table(name)) for name in _upper_levels(reader, place)
        )
    return stand(reader, place, tuple(line(p.start, p.length) for p in place.pieces))


def stand(reader: Reader, place: DiskPlace, lines: tuple[TableLine, ...]) -> bool:
    """Whether these lines stand in the lowest level of the disk's table, where those of ranges are."""
    if reader.dm.info(place.disk) is None:
        return False
    return _hold(reader, lines, reader.dm.table(levels(reader, place.disk)[-1]))


def _upper_levels(reader: Reader, place: DiskPlace) -> Iterable[str]:
    return levels(reader, place.disk)[:-1]


def _hold(reader: Reader, lines: tuple[TableLine, ...], table: tuple[DmTarget, ...]) -> bool:
    """Whether a table has each line. Neighbours that lead on without a gap stand in it as one."""
    known = numbers(reader, lines)
    if any(word not in known for line in lines for word in line.args.split() if word.startswith(("dm:", "loop:"))):
        return False
    return all(_has(table, resolved(line, known)) for line in lines)


def _has(table: tuple[DmTarget, ...], wanted: DmTarget) -> bool:
    found = touching(table, wanted.start, wanted.start + 1)
    if not found:
        return False
    line = found[0]
    inside = wanted.start + wanted.length <= line.start + line.length
    return inside and line.kind == wanted.kind and line.args.split()[:1] == wanted.args.split()[:1]
