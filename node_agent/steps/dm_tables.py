"""Arithmetic on device-mapper tables. Pure: lines in, lines out.

A table is a sequence of lines without gaps. It is *canonical* when no two neighbours could be one line. What is
put into a table here leaves it canonical; cutting a canonical table and putting the pieces back gives the same
table byte for byte.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from node_agent.host import DmTarget

Table = tuple[DmTarget, ...]

_WITHOUT_PLACE = ("error", "zero")
"""Targets that answer the same for every sector, so that a line of them can be cut anywhere."""


def parse_table(text: str) -> Table:
    """Lines of "start length kind args", as `dmsetup table` prints them. Raises ValueError."""
    lines = []
    for line in text.splitlines():
        fields = line.split(maxsplit=3)
        if len(fields) < 3:
            raise ValueError(f"not a device-mapper table line: {line!r}")
        lines.append(DmTarget(int(fields[0]), int(fields[1]), fields[2], " ".join(fields[3:])))
    return tuple(lines)


def render_table(table: Sequence[DmTarget]) -> str:
    """The text of a table, a line each."""
    return "\n".join(f"{t.start} {t.length} {t.kind} {t.args}".rstrip() for t in table)


def length_of(table: Sequence[DmTarget]) -> int:
    """Sectors a table covers."""
    return sum(t.length for t in table)


def _place(line: DmTarget) -> tuple[str, int] | None:
    """Device and sector that a linear line leads to; None for any other kind."""
    words = line.args.split()
    return (words[0], int(words[1])) if line.kind == "linear" and len(words) == 2 else None


def place_of(line: DmTarget, sector: int) -> tuple[str, int]:
    """Where `sector` of a linear line lies: device and sector there. Raises ValueError for another kind."""
    place = _place(line)
    if place is None:
        raise ValueError(f"{line.kind} is not linear")
    return place[0], place[1] + sector - line.start


def part_of(line: DmTarget, start: int, end: int) -> DmTarget:
    """The part [start, end) of a line. Raises ValueError where that kind of line cannot be cut."""
    if (start, end) == (line.start, line.start + line.length):
        return line
    if line.kind in _WITHOUT_PLACE and not line.args:
        return DmTarget(start, end - start, line.kind, "")
    device, sector = place_of(line, start)
    return DmTarget(start, end - start, "linear", f"{device} {sector}")


def touching(table: Sequence[DmTarget], start: int, end: int) -> Table:
    """The lines of a table that have sectors of [start, end). Found by halving: tables may be long."""
    first = bisect_right(table, start, key=lambda t: t.start + t.length)
    return tuple(table[first : bisect_left(table, end, key=lambda t: t.start)])


def cut_out(table: Sequence[DmTarget], start: int, end: int) -> Table:
    """What a table has in [start, end). Raises ValueError where it would cut a line that cannot be cut."""
    return tuple(
        part_of(t, max(t.start, start), min(t.start + t.length, end)) for t in touching(table, start, end)
    )


def _joined(left: DmTarget, right: DmTarget) -> DmTarget | None:
    """Two neighbours as one line, where they are one."""
    if left.start + left.length != right.start or left.kind != right.kind:
        return None
    length = left.length + right.length
    if left.kind in _WITHOUT_PLACE and not left.args and not right.args:
        return DmTarget(left.start, length, left.kind, "")
    place, follows = _place(left), _place(right)
    if place and follows and follows == (place[0], place[1] + left.length):
        return DmTarget(left.start, length, left.kind, left.args)
    return None


def merge(table: Sequence[DmTarget]) -> Table:
    """The canonical form."""
    lines: list[DmTarget] = []
    for line in table:
        one = _joined(lines[-1], line) if lines else None
        if one:
            lines[-1] = one
        else:
            lines.append(line)
    return tuple(lines)


def put_in(table: Sequence[DmTarget], lines: Sequence[DmTarget]) -> Table:
    """A table with `lines` in place of what it had there. Raises ValueError where that does not fit.

    Takes time in proportion to the lines of both, so that ten thousand bad ranges are no trouble.
    """
    end = length_of(table)
    found: list[DmTarget] = []
    number, at = 0, 0
    for line in (*sorted(lines, key=lambda t: t.start), None):
        until, stop = (line.start, line.start + line.length) if line else (end, end)
        if line and (line.length <= 0 or line.start < 0 or stop > end):
            raise ValueError(f"[{line.start}, {stop}) is not within a table of {end} sectors")
        if until < at:
            raise ValueError(f"two lines have sector {until}")
        while number < len(table) and table[number].start < until:
            there = table[number]
            after = there.start + there.length
            first, last = max(there.start, at), min(after, until)
            if first < last:
                found.append(part_of(there, first, last))
            if after > until:
                break
            number += 1
        if line:
            found.append(line)
        at = stop
    return merge(found)


def fill(lines: Sequence[DmTarget], size: int, kind: str) -> Table:
    """A table of `size` sectors with these lines, and `kind` (error or zero) everywhere else."""
    return put_in((DmTarget(0, size, kind, ""),), lines)
