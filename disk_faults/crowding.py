"""What faults that use up a file system have in common: where, whose the files are, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.steps.base import Step
from node_agent.steps.filesystem_care import FilesystemCare
from node_agent.steps.mark_file import MarkFile

from .data_disks import DataDisk, find_disk

KINDS = ("ext4", "xfs")
"""File systems whose full state was measured."""


class CrowdedPlace(Target):
    """A folder of a mounted data disk, and the user whose files are to use it up."""

    disk: str
    number: str
    fstype: str
    mounted_at: str
    folder: str
    uid: int
    gid: int
    in_a_file: bool
    """Whether the disk lies in a file of another one."""

    def path(self, name: str, tag: str) -> str:
        """Where the injection puts what it makes."""
        return f"{self.folder.rstrip('/')}/{name}.{tag}"

    def describe(self) -> str:
        return (
            f"the {self.fstype} at {self.mounted_at} ({self.disk}), by files of user {self.uid} in {self.folder}"
        )


class CrowdingFault(Fault):
    """Base of those faults."""

    disk: str = Field(default="", description="data disk by name or mount point; none: the only one")
    owner: str = Field(default="nobody", description="user, by name or number, whose files they are; never root")
    folder: str = Field(default="", description="existing folder of the disk to put them in; none: its top")

    def locate(self, reader: Reader, facts: Facts) -> CrowdedPlace:
        disk = find_disk(reader, facts, self.disk)
        mount = writable(disk)
        uid, gid = _user(reader, self.owner)
        base = disk.table[0].args.split()[0]
        return CrowdedPlace(
            disk=disk.name, number=disk.number, fstype=disk.mount.fstype if disk.mount else "", mounted_at=mount,
            folder=self._folder(reader, disk, mount), uid=uid, gid=gid, in_a_file=base.startswith("7:"),
        )  # fmt: skip

    def _folder(self, reader: Reader, disk: DataDisk, mount: str) -> str:
        if not self.folder:
            return mount
        allowed = f"a folder of the disk, such as {mount}"
        if not self.folder.startswith("/") or reader.realpath(self.folder) != str(PurePosixPath(self.folder)):
            raise Refusal(f"folder: {self.folder} is no plain path", field="folder", allowed=allowed)
        info = reader.file_info(self.folder)
        if info is None or info.kind != "directory" or info.device != disk.number:
            raise Refusal(f"folder: {self.folder} is no folder of {disk.name}", field="folder", allowed=allowed)
        return str(PurePosixPath(self.folder))


def writable(disk: DataDisk) -> str:
    """Where a disk is mounted. Raises :class:`Refusal` where it is not, not for writing, or in an unknown way."""
    if disk.mount is None:
        raise Refusal(
            f"disk: {disk.name} is not mounted", field="disk", allowed="a disk with a mounted file system"
        )
    if disk.mount.fstype not in KINDS:
        raise Refusal(
            f"disk: {disk.mount.fstype} at {disk.mount.target}", field="disk", allowed=" or ".join(KINDS)
        )
    if "ro" in disk.mount.options.split(","):
        raise Refusal(
            f"disk: {disk.mount.target} is mounted read-only", field="disk", allowed="one mounted for writing"
        )
    return disk.mount.target


def _user(reader: Reader, wanted: str) -> tuple[int, int]:
    """User and group number. Names are those of /etc/passwd; other users go by number."""
    allowed = "a user of /etc/passwd or a number, but not root"
    for line in reader.read_text("/etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and wanted in (fields[0], fields[2]):
            uid, gid = int(fields[2]), int(fields[3])
            break
    else:
        if not re.fullmatch(r"\d{1,9}", wanted):
            raise Refusal(f"owner: there is no user {wanted!r}", field="owner", allowed=allowed)
        uid = gid = int(wanted)
    if uid == 0:
        raise Refusal("owner: root may use what is kept for root", field="owner", allowed=allowed)
    return uid, gid


def another_user(uid: int) -> int:
    """The number of some user who is neither this one nor root."""
    return 65534 if uid != 65534 else 65533


def begin(place: CrowdedPlace, tag: str, what: str) -> tuple[Step, ...]:
    """First of the steps: care for the file system, and a mark for people."""
    return (
        FilesystemCare(name=tag, device=place.disk, mount=place.mounted_at),
        MarkFile(name=tag, text=f"{what} at {place.mounted_at}"),
    )


def place_of(target: Target) -> CrowdedPlace:
    """The target as what it is. Raises TypeError for that of another kind of fault."""
    if not isinstance(target, CrowdedPlace):
        raise TypeError(f"{type(target).__name__} is no place to be crowded")
    return target


def room_counters(reader: Reader, place: CrowdedPlace) -> Mapping[str, Any]:
    """What statfs(2) says now."""
    room = reader.space.room(place.mounted_at)
    return {"available_bytes": room.available, "free_bytes": room.free, "free_inodes": room.inodes_free}
