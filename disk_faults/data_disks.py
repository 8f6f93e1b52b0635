"""Finding the disk and the file a fault is meant for, and refusing what must not be one. Only looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from node_agent.errors import Refusal
from node_agent.fault import TAG_PREFIX, Facts, Mount
from node_agent.host import DmTarget, FileInfo, Reader
from node_agent.steps.dm_names import holder_of, levels, made_devices
from node_agent.steps.dm_tables import length_of

from .places import dice

PROTECTED = ("/", "/boot", "/etc", "/opt", "/root", "/usr", "/var", "/run", "/home")
"""A disk with one of these, or a folder below /var that is a mount of its own, is the system's."""

TRUE_PLACES = ("ext2", "ext3", "ext4", "xfs")
"""File systems whose FIEMAP answers are sectors of the device, and that rewrite a block where it is."""

_LOOK_AT = 4000


@dataclass(frozen=True)
class DataDisk:
    """A device-mapper device that leads straight to disks, but for faults that stand in it or on it.

    `table` is that of its lowest level, where its sectors are. `size` in sectors.
    """

    name: str
    number: str
    table: tuple[DmTarget, ...]
    mount: Mount | None

    @property
    def size(self) -> int:
        """Sectors."""
        return length_of(self.table)


def _is_system(mounts: Sequence[Mount]) -> bool:
    return any(m.target in PROTECTED or m.target.startswith(("/boot/", "/usr/", "/var/")) for m in mounts)


def data_disks(reader: Reader, facts: Facts) -> tuple[DataDisk, ...]:
    """Every disk that a fault may be planted in: linear, not the system's, not made by an injection."""
    found = []
    made = made_devices(reader)
    for info in reader.dm.list():
        mounts = [m for m in facts.mounts if m.device == info.number]
        if info.name.startswith(TAG_PREFIX) or _is_system(mounts):
            continue
        table = reader.dm.table(levels(reader, info.name)[-1])
        if table and all(t.kind == "linear" or holder_of(t, made) in made.values() for t in table):
            found.append(DataDisk(info.name, info.number, table, mounts[0] if mounts else None))
    return tuple(found)


def find_disk(reader: Reader, facts: Facts, wanted: str) -> DataDisk:
    """The disk called `wanted` (name, /dev/mapper path or mount point), or the only one that is mounted.

    Raises :class:`Refusal` naming the field `disk` and the disks there are.
    """
    disks = data_disks(reader, facts)
    names = ", ".join(d.name for d in disks)
    allowed = f"one of: {names}" if names else "a device-mapper device whose table is linear; this node has none"
    if wanted:
        name = wanted.removeprefix("/dev/mapper/")
        for disk in disks:
            if name == disk.name or (disk.mount and wanted.rstrip("/") == disk.mount.target):
                return disk
        raise Refusal(f"disk: {wanted!r} is no data disk of this node", field="disk", allowed=allowed)
    mounted = [d for d in disks if d.mount]
    if len(mounted) != 1:
        raise Refusal(f"disk: which? {len(mounted)} data disks are mounted", field="disk", allowed=allowed)
    return mounted[0]


def find_file(reader: Reader, facts: Facts, wanted: str, seed: int) -> tuple[str, FileInfo, DataDisk]:
    """The file at `wanted`, a path or a pattern (then one of the matches, by seed), and its disk.

    Raises :class:`Refusal` naming the field `file`.
    """
    if not wanted.startswith("/"):
        raise _refused(wanted, "is not an absolute path", "a path from /, or a pattern such as /srv/data/**")
    if any(c in wanted for c in "*?[") and reader.file_info(wanted) is None:
        matches = reader.glob(wanted)
        if not matches:
            raise _refused(wanted, "matches nothing", "a pattern that matches a file of a data disk")
        usable = [p for p in matches if _is_candidate(reader.file_info(p))]
        if not usable:
            text = f"matches {len(matches)} paths, none of them a regular file that is not empty"
            raise _refused(wanted, text, "a pattern that matches a file of a data disk")
        wanted = dice(seed).choice(usable)
    parent = PurePosixPath(wanted).parent
    path = str(PurePosixPath(reader.realpath(str(parent))) / PurePosixPath(wanted).name)
    info = reader.file_info(path)
    if info is None:
        raise _refused(wanted, "does not exist", "an existing file")
    _refuse_by_kind(reader, wanted, info)
    return path, info, _disk_of(reader, facts, wanted, info)


def _refused(path: str, what: str, allowed: str) -> Refusal:
    return Refusal(f"file: {path} {what}", field="file", allowed=allowed)


def _is_candidate(info: FileInfo | None) -> bool:
    return info is not None and info.kind == "file" and info.size > 0


def _refuse_by_kind(reader: Reader, path: str, info: FileInfo) -> None:
    allowed = "a regular file that is not empty"
    if info.kind == "symlink":
        real = reader.realpath(path)
        raise _refused(path, f"is a symbolic link to {real}; name that one, if you mean it", allowed)
    if info.kind == "directory":
        raise _refused(path, "is a directory", f"{allowed}, or a pattern such as {path.rstrip('/')}/**")
    if info.kind != "file":
        raise _refused(path, "is a device, pipe or socket", allowed)
    if info.size == 0:
        raise _refused(path, "is empty: it has no sectors", allowed)


def _disk_of(reader: Reader, facts: Facts, path: str, info: FileInfo) -> DataDisk:
    disks = data_disks(reader, facts)
    where = ", ".join(d.mount.target for d in disks if d.mount)
    allowed = f"a file below {where}" if where else "a file on a disk under a linear device-mapper table"
    mounts = [m for m in facts.mounts if m.device == info.device]
    if _is_system(mounts):
        raise _refused(path, f"is on a disk of the system ({mounts[0].target})", allowed)
    disk = next((d for d in disks if d.number == info.device), None)
    if disk is None:
        raise _refused(path, f"is on device {info.device}, which is no linear device-mapper device", allowed)
    if disk.mount is None or disk.mount.fstype not in TRUE_PLACES:
        kind = disk.mount.fstype if disk.mount else "unmounted"
        raise _refused(path, f"is on {kind}, which does not tell where data lies", f"{', '.join(TRUE_PLACES)}")
    return disk


def files_of(reader: Reader, disk: DataDisk, seed: int) -> Iterator[tuple[str, FileInfo]]:
    """Regular files of a disk that are not empty, in an order decided by the seed.

    Folder by folder from the top; of a large tree only the first few thousand entries are looked at.
    """
    assert disk.mount is not None
    found: list[tuple[str, FileInfo]] = []
    folders, looked = [disk.mount.target], 0
    while folders and looked < _LOOK_AT:
        folder = folders.pop(0)
        for name in reader.listdir(folder):
            path = f"{folder.rstrip('/')}/{name}"
            info = reader.file_info(path)
            looked += 1
            if info is None or info.device != disk.number or looked > _LOOK_AT:
                continue
            if info.kind == "directory":
                folders.append(path)
            elif _is_candidate(info):
                found.append((path, info))
    dice(seed).shuffle(found)
    yield from found
