"""The place a disk fault is meant for: a whole data disk, a range of its sectors, or a file; and finding it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from node_agent.errors import ConflictError, Refusal
from node_agent.fault import Facts, Fault, Target
from node_agent.host import SECTOR, FileInfo, Reader
from node_agent.steps.dm_names import made_devices, node_path

from .data_disks import DataDisk, files_of, find_disk, find_file
from .places import UNIT_SECTORS, Layout, Piece, choose, everything, layout_of, parse_range, spans_of_range

Chosen = Literal["disk", "file"]


class DiskPlace(Target):
    """A part of a data disk, of `size` sectors in all. Without pieces it is the whole disk.

    `backend` is what the fault found out the kernel can do; `detail` whatever else it found.
    """

    disk: str
    number: str
    size: int
    fstype: str
    mounted_at: str
    file: str = ""
    inode: int = 0
    pieces: tuple[Piece, ...] = ()
    backend: str = ""
    detail: tuple[int, ...] = ()

    @property
    def node(self) -> str:
        """The device node of the disk."""
        return node_path(self.number)

    def place(self, piece: Piece) -> tuple[str, int, int]:
        """Path, offset and length in bytes by which a user reads a piece."""
        if self.file:
            return self.file, piece.offset, piece.length * SECTOR
        return self.node, piece.start * SECTOR, piece.length * SECTOR

    def describe(self) -> str:
        if not self.pieces:
            where = f", mounted at {self.mounted_at}" if self.mounted_at else ""
            return f"all of {self.disk} ({self.size} sectors{where})"
        first = self.pieces[0]
        many = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        below = f"device {first.base}, sector {first.base_start}"
        where = f"sector {first.start}+{first.length}{many} of {self.disk} ({below})"
        return f"{self.file} at byte {first.offset}: {where}" if self.file else where


class PlacedFault(Fault):
    """Base of the faults that have a place on a disk. With neither file nor range, `by_default` decides."""

    by_default: ClassVar[Chosen] = "disk"

    file: str = Field(default="", description="path, or a pattern of which one match is taken")
    disk: str = Field(default="", description="data disk by name or mount point; none: the only one")
    range: str = Field(default="", description="START+COUNT in 512-byte sectors of the data disk, not of a file")

    @field_validator("range")
    @classmethod
    def _range_is_one(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("file"):
            raise ValueError("file and range exclude each other; give one")
        if value:
            parse_range(value)
        return value

    def locate(self, reader: Reader, facts: Facts) -> Target:
        return self.find_place(reader, facts)

    def sectors_wanted(self) -> int:
        """How many sectors of a file are meant, chosen in blocks by seed; 0: all that it has."""
        return 0

    def in_range(self, disk: DataDisk, made: Mapping[str, str]) -> tuple[Piece, ...]:
        """The pieces of the range."""
        start, count = parse_range(self.range)
        return spans_of_range(start, count, disk.table, disk.size, made)

    def find_place(self, reader: Reader, facts: Facts) -> DiskPlace:
        """The place these parameters name, only looked up. Raises :class:`Refusal` naming the field."""
        if self.range:
            disk = find_disk(reader, facts, self.disk)
            return _place(disk, pieces=self.in_range(disk, made_devices(reader)))
        if self.file:
            path, info, disk = find_file(reader, facts, self.file, self.seed)
            if self.disk and find_disk(reader, facts, self.disk) != disk:
                raise Refusal(f"disk: {path} is on {disk.name}", field="disk", allowed=disk.name)
            return self._in_file(reader, disk, path, info)
        disk = find_disk(reader, facts, self.disk)
        return _place(disk) if self.by_default == "disk" else self._in_any_file(reader, disk)

    def _in_any_file(self, reader: Reader, disk: DataDisk) -> DiskPlace:
        if disk.mount is None:
            raise Refusal(f"file: {disk.name} is not mounted", field="file", allowed="range, for such a disk")
        for path, info in files_of(reader, disk, self.seed):
            try:
                return self._in_file(reader, disk, path, info)
            except Refusal:  # this file will not do; the next may
                continue
        wanted = f"{self.sectors_wanted()} sectors" if self.sectors_wanted() else "sectors"
        raise Refusal(
            f"file: no file below {disk.mount.target} has {wanted} of its own",
            field="file", allowed="a file, or range",
        )  # fmt: skip

    def _in_file(self, reader: Reader, disk: DataDisk, path: str, info: FileInfo) -> DiskPlace:
        unit = min(UNIT_SECTORS, max(1, reader.disk.block_size(path) // SECTOR))
        count = -(-self.sectors_wanted() // unit)
        layout = mapped(reader, disk, path, info, unit)
        refuse_too_small(layout, path, unit, max(1, count))
        made = made_devices(reader)
        if count:
            pieces = choose(layout, count, unit, seed=self.seed, table=disk.table, made=made)
        else:
            pieces = everything(layout, unit, table=disk.table, made=made)
        return _place(disk, pieces=pieces, file=path, inode=info.inode)


def mapped(reader: Reader, disk: DataDisk, path: str, info: FileInfo, unit: int) -> Layout:
    """What of a file has sectors of its own, in units of `unit` sectors."""
    try:
        extents = reader.disk.extents(path)
    except OSError as error:
        raise ConflictError(f"file: {path} cannot be mapped: {error.strerror}", field="file") from error
    return layout_of(extents, info.size, unit, disk.table)


def refuse_too_small(layout: Layout, path: str, unit: int, count: int) -> None:
    """Raise :class:`Refusal` where a file has less than `count` units."""
    if layout.units >= count:
        return
    why = f" (not usable: {layout.why_not()})" if layout.barred else ""
    field = "sectors" if layout.units else "file"
    have = f"{path} has {layout.units * unit} sectors of its own on the disk"
    raise Refusal(
        f"{field}: {have}, {count * unit} wanted{why}",
        field=field,
        allowed=f"at most {layout.units * unit}" if layout.units else "a file with written data of its own",
    )


def _place(disk: DataDisk, *, pieces: tuple[Piece, ...] = (), file: str = "", inode: int = 0) -> DiskPlace:
    return DiskPlace(
        disk=disk.name, number=disk.number, size=disk.size, fstype=disk.mount.fstype if disk.mount else "",
        mounted_at=disk.mount.target if disk.mount else "", pieces=pieces, file=file, inode=inode,
    )  # fmt: skip


def place_of_target(target: Target) -> DiskPlace:
    """The target as what it is. Raises TypeError for that of another kind of fault."""
    if not isinstance(target, DiskPlace):
        raise TypeError(f"{type(target).__name__} is no place on a disk")
    return target
