"""The steps that put a fault in a disk's way: on the whole of it, or in the ranges it is meant for. Pure.

    whole disk                                    ranges
    disk   the fault's lines, over all of it      disk   linear … | the fault's line at S | linear …
    media  devices of the fault                   media  devices of the fault
    below  the table that the disk had            under  error | linear to the true place at S | error

The base under a fault has the disk's size, and each sector has the same number on every level, so a fault is
written once: media above `base(place, tag)`, and what a line of the disk says. A fault of the whole disk stands
above those of ranges, and a later one above an earlier one: the last to come sees the I/O first. They end in any
order. Ranges of two faults may not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from node_agent.host import DmTarget
from node_agent.steps import Step
from node_agent.steps.dm_below import DmBelow
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_let_go import DmLetGo
from node_agent.steps.dm_names import TableLine, lines_of
from node_agent.steps.dm_on_top import DmOnTop
from node_agent.steps.dm_overlay import DmOverlay
from node_agent.steps.dm_tables import fill
from node_agent.steps.drop_pages import DropPages
from node_agent.steps.filesystem_care import FilesystemCare

from .disk_place import DiskPlace
from .places import Piece

READS = (
    "read", "pread64", "readv", "preadv2", "io_uring", "mmap", "sendfile", "splice", "copy_file_range", "O_DIRECT",
)  # fmt: skip
WRITES = ("write", "pwrite64", "writev", "io_uring", "mmap and msync", "write-back", "O_DIRECT", "the journal")
"""Entry points that all come down to the block layer, so that a fault in a disk's way covers them."""

Line = Callable[[int, int], TableLine]
"""What stands in the disk's table at a start sector, for a length."""


def layer(tag: str, part: str) -> str:
    """The name of one of an injection's devices."""
    return f"{tag}-{part}"


def base(place: DiskPlace, tag: str) -> str:
    """The device that leads to the true places, as a table of a plan names it."""
    return f"dm:{layer(tag, 'under' if place.pieces else 'below')}"


def device(place: DiskPlace, tag: str, part: str, kind: str, args: str = "") -> DmDevice:
    """A device of one line, of the disk's size."""
    line = TableLine(start=0, length=place.size, kind=kind, args=args)
    return DmDevice(name=layer(tag, part), table=(line,))


def straight(place: DiskPlace, over: str) -> list[DmTarget]:
    """Lines for the pieces that lead to the same sectors of device `over`."""
    return [DmTarget(p.start, p.length, "linear", f"{over} {p.start}") for p in place.pieces]


def true_place(piece: Piece) -> DmTarget:
    """The line that leads a piece to where it is on the disk below."""
    return DmTarget(piece.start, piece.length, "linear", f"{piece.base} {piece.base_start}")


def care(place: DiskPlace, tag: str) -> tuple[Step, ...]:
    """First of the steps, so last to be undone: what the file system did to protect itself is taken back."""
    if not place.mounted_at:
        return ()
    return (FilesystemCare(name=tag, device=place.disk, mount=place.mounted_at),)


def let_go(place: DiskPlace, tag: str, part: str, to: str) -> DmLetGo:
    """Last of the steps of a fault that holds I/O back: at the end device `part` leads straight to device `to`."""
    line = TableLine(start=0, length=place.size, kind="linear", args=f"{to} 0")
    return DmLetGo(name=layer(tag, part), lines=(line,))


def planted(
    place: DiskPlace,
    tag: str,
    media: Sequence[Step],
    line: Line,
    *,
    farewell: tuple[str, ...] = (),
    drop_pages: bool = False,
) -> tuple[Step, ...]:
    """All steps in order. `media` are the fault's own devices, above :func:`base`.

    With `drop_pages` the pages of the pieces leave the page cache before and after, so that reads reach the fault.
    """
    if not place.pieces:
        below = layer(tag, "below")
        top = DmOnTop(disk=place.disk, below=below, lines=(line(0, place.size),), farewell=farewell)
        return (*care(place, tag), DmBelow(disk=place.disk, name=below), *media, top)
    under = lines_of(fill([true_place(p) for p in place.pieces], place.size, "error"))
    overlay = DmOverlay(
        device=place.disk,
        lines=tuple(line(p.start, p.length) for p in place.pieces),
        base=lines_of(true_place(p) for p in place.pieces),
    )
    before, after = evictions(place) if drop_pages else ((), ())
    return (
        *care(place, tag),
        DmDevice(name=layer(tag, "under"), table=under),
        *media,
        *before,
        overlay,
        *after,
    )


def snapshots(place: DiskPlace, tag: str, origin: str) -> Iterator[Step]:
    """A device `snap-N` for each piece: it reads as device `origin` until the piece is rewritten.

    Its first copy goes to chunk 0 of cow-N, which is the piece's own place, and is read from there afterwards.
    """
    for number, piece in enumerate(place.pieces):
        cow = layer(tag, f"cow-{number}")
        own = TableLine(start=0, length=piece.length, kind="linear", args=f"{piece.base} {piece.base_start}")
        yield DmDevice(name=cow, table=(own,))
        yield device(place, tag, f"snap-{number}", "snapshot", f"{origin} dm:{cow} N {piece.length}")


def evictions(place: DiskPlace) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The first writes dirty pages to the disk while it is well, the second takes what was read meanwhile."""
    by_path = [place.place(piece) for piece in place.pieces]
    ranges = tuple((offset, length) for _, offset, length in by_path)
    path = by_path[0][0]
    first = DropPages(path=path, ranges=ranges, why="while writing it back still reaches good sectors")
    return (first,), (DropPages(path=path, ranges=ranges),)
