"""Where bad sectors lie, and the layers of devices that make them bad. Pure.

From the top, for each bad unit at sector S of the disk:

    disk    linear … | snap-i or loop at S | linear …     the live table, swapped under I/O
    snap-i  snapshot of the loop device, its copies on cow-i
    cow-i   linear: exactly the unit's true place         a rewrite lands there, and later reads come from there
    loop    a queue of the block layer: it logs each failed read with its sector
    bad     zero | gate at S | zero                       blkid and other curious readers find zeros
    gate    error | media at S | error                    counts the reads of bad sectors, and of nothing else
    media   error, or flakey or dust over pass            fails the reads
    pass    error | linear at S | error                   counts the reads that were let through

Only what a backend needs is made. docs/decisions/0002-healing-by-rewrite.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from node_agent.host import SECTOR, DmTarget
from node_agent.steps import Step
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_names import TableLine, lines_of
from node_agent.steps.dm_overlay import DmOverlay
from node_agent.steps.dm_tables import fill, part_of
from node_agent.steps.loop_device import LoopDevice

from .disk_place import DiskPlace
from .layers import care, evictions, layer, snapshots, straight, true_place
from .places import Piece

Backend = Literal["snapshot", "dust", "flakey", "error"]
"""How reads are made to fail. `snapshot` and `dust` heal by rewrite, `flakey` and `error` stay bad."""


class BadSectors(DiskPlace):
    """Sectors of a disk that are to go bad. `on_s`, `off_s`: seconds of a burst in which reads fail, and in which
    they do not; 0 and 0 for always."""

    backend: Backend
    on_s: int
    off_s: int

    @property
    def lets_through(self) -> bool:
        """Whether the layers have a `pass` device: reads can succeed below the gate."""
        return self.backend in ("dust", "flakey") or self.on_s > 0


def overlay_lines(target: BadSectors, tag: str) -> tuple[TableLine, ...]:
    """What stands in the disk's table for each piece."""
    return tuple(_overlay_line(target, tag, n, p) for n, p in enumerate(target.pieces))


def _overlay_line(target: BadSectors, tag: str, number: int, piece: Piece) -> TableLine:
    over = f"dm:{layer(tag, f'snap-{number}')}" if target.backend == "snapshot" else f"loop:{layer(tag, 'bad')}"
    return TableLine(start=piece.start, length=piece.length, kind="linear", args=f"{over} {piece.start}")


def steps_for(target: BadSectors, tag: str) -> tuple[Step, ...]:
    """All changes in order: the devices, then the swap, between two evictions.

    The first eviction writes dirty pages to the disk while it is well: a write-back after the swap would heal.
    """
    before, after = evictions(target)
    return (
        *care(target, tag),
        *_media(target, tag),
        LoopDevice(over=layer(tag, "bad")),
        *(snapshots(target, tag, f"loop:{layer(tag, 'bad')}") if target.backend == "snapshot" else ()),
        *before,
        DmOverlay(
            device=target.disk,
            lines=overlay_lines(target, tag),
            base=lines_of(true_place(p) for p in target.pieces),
        ),
        *after,
    )


def _media(target: BadSectors, tag: str) -> Iterator[Step]:
    """Everything below the loop device."""
    if target.lets_through:
        yield _device(target, tag, "pass", [true_place(p) for p in target.pieces], "error")
    args, messages = _failing(target, tag)
    kind = "error" if not args else "flakey" if target.backend != "dust" else "dust"
    line = TableLine(start=0, length=target.size, kind=kind, args=args)
    yield DmDevice(name=layer(tag, "media"), table=(line,), messages=messages)
    yield _gate(target, tag)
    yield _device(target, tag, "bad", straight(target, f"dm:{layer(tag, 'gate')}"), "zero")


def _failing(target: BadSectors, tag: str) -> tuple[str, tuple[str, ...]]:
    """Arguments and messages of the target that fails reads; no arguments: the plain error target.

    Sources: Documentation/admin-guide/device-mapper/dm-flakey.rst and dm-dust.rst.
    """
    below = f"dm:{layer(tag, 'pass')}"
    if target.backend == "dust":
        sectors = (s for p in target.pieces for s in range(p.start, p.end))
        return f"{below} 0 {SECTOR}", ("quiet", *(f"addbadblock {s}" for s in sectors), "enable")
    if target.lets_through:
        return f"{below} 0 {target.off_s} {target.on_s or 1} 1 error_reads", ()
    return "", ()


def _gate(target: BadSectors, tag: str) -> DmDevice:
    """Above dust in lines of one sector: dust takes reads apart so, and both sides must count alike."""
    lines = fill(straight(target, f"dm:{layer(tag, 'media')}"), target.size, "error")
    if target.backend == "dust":
        lines = tuple(
            part_of(line, at, at + 1) if line.kind == "linear" else line
            for line in lines
            for at in (range(line.start, line.start + line.length) if line.kind == "linear" else (line.start,))
        )
    return DmDevice(name=layer(tag, "gate"), table=lines_of(lines))


def _device(target: BadSectors, tag: str, part: str, lines: Sequence[DmTarget], around: str) -> DmDevice:
    return DmDevice(name=layer(tag, part), table=lines_of(fill(lines, target.size, around)))
