"""Evidence of bad sectors, read from the kernel: the live table, counters, snapshots and the log."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence

from node_agent.errors import ApplyError
from node_agent.fault import Evidence
from node_agent.host import SECTOR, Extent, Reader

from .bad_sectors import BadSectors, overlay_lines
from .counting import passed, stand
from .layers import layer
from .places import Piece
from .queue_log import logged

_PAUSE_S, _LONGEST_WAIT_S = 0.2, 15


def prove(reader: Reader, target: BadSectors) -> None:
    """Read each piece past the page cache; every one must answer EIO.

    Raises ApplyError where one does not, or the file was moved while the fault was planted. In a burst the time
    in which reads succeed is waited out, up to 15 s of it; longer ones are left to the victim.
    """
    if target.file:
        moved = [p for p in target.pieces if not _maps_there(reader.disk.extents(target.file), p)]
        if moved:
            raise ApplyError(f"{target.file} was moved on the disk while the fault was planted; try again")
    if target.off_s > _LONGEST_WAIT_S:
        return
    tries = 1 + int((target.off_s + 1) / _PAUSE_S) * bool(target.off_s)
    for piece in target.pieces:
        path, offset, length = target.place(piece)
        for left in reversed(range(tries)):
            answer = _answer(reader, path, offset, length)
            if answer == errno.EIO:
                break
            if left:
                time.sleep(_PAUSE_S)
        else:
            what = "read well" if answer == 0 else f"answered {errno.errorcode.get(answer, answer)}"
            raise ApplyError(f"sector {piece.start} of {target.disk} {what} instead of failing with EIO")


def _answer(reader: Reader, path: str, offset: int, length: int) -> int:
    """0, or the errno of a direct read."""
    try:
        reader.disk.direct_read(path, offset, length)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _maps_there(extents: Sequence[Extent], piece: Piece) -> bool:
    place, size = piece.start * SECTOR, piece.length * SECTOR
    return any(
        e.logical <= piece.offset
        and piece.offset + size <= e.logical + e.length
        and e.physical + piece.offset - e.logical == place
        for e in extents
    )


def reads_of(reader: Reader, name: str) -> int:
    """Reads a device-mapper device has passed on; see :func:`passed`."""
    return passed(reader, name).reads


def evidence(reader: Reader, target: BadSectors, tag: str, log_mark: int) -> Evidence:
    """Whether the disk's live table has every piece, how many reads failed, what was healed, what was logged."""
    passed = reads_of(reader, layer(tag, "pass")) if target.lets_through else 0
    hits = reads_of(reader, layer(tag, "gate")) - passed
    healed, broken = _snapshots(reader, target, tag)
    notes = [f"sector {p.start}+{p.length}: healed by a rewrite, it reads well since" for p in healed]
    notes += [
        f"sector {p.start}+{p.length}: a write of less than the block failed, and so does every access since"
        for p in broken
    ]
    notes += _file_notes(reader, target) if target.file else ()
    counters = {"bad_blocks": len(target.pieces), "failed_reads": max(0, hits)}
    if target.lets_through:
        counters["passed_reads"] = passed
    if target.backend == "snapshot":
        counters["healed_blocks"] = len(healed)
    ranges = tuple((p.start, p.end) for p in target.pieces)
    lines, gap = logged(reader, layer(tag, "bad"), ranges, log_mark)
    if gap:
        notes.append("rate-limited: the kernel dropped some of its lines")
    return Evidence(
        armed=stand(reader, target, overlay_lines(target, tag)),
        hits=max(0, hits),
        counters=counters,
        log=tuple(lines),
        log_gap=gap,
        notes=tuple(notes),
    )


def _snapshots(reader: Reader, target: BadSectors, tag: str) -> tuple[list[Piece], list[Piece]]:
    """Pieces that were rewritten, and pieces whose snapshot the kernel gave up."""
    healed: list[Piece] = []
    broken: list[Piece] = []
    if target.backend != "snapshot":
        return healed, broken
    for number, piece in enumerate(target.pieces):
        name = layer(tag, f"snap-{number}")
        if reader.dm.info(name) is None:
            continue
        for line in reader.dm.status(name):
            used = line.args.split("/")[0]
            if not used.isdigit():
                broken.append(piece)
            elif int(used):
                healed.append(piece)
    return healed, broken


def _file_notes(reader: Reader, target: BadSectors) -> Iterator[str]:
    info = reader.file_info(target.file)
    if info is None:
        yield f"{target.file} is gone; its sectors stay bad"
        return
    if info.inode != target.inode:
        yield f"{target.file} is another file now, and does not map to the bad sectors"
        return
    extents = reader.disk.extents(target.file, sync=False)
    moved = [p for p in target.pieces if not _maps_there(extents, p)]
    if moved:
        yield f"{target.file} no longer maps to {len(moved)} of the {len(target.pieces)} bad blocks"
    here = [(p.offset, p.length * SECTOR) for p in target.pieces if p not in moved]
    kept = reader.disk.cached(target.file, here) if here else ()
    if kept:
        yield f"the page cache has {len(kept)} of the bad blocks; buffered reads of them do not reach the disk"
