"""shm_full: /dev/shm, or another file system in memory, has no room left because of somebody's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import ApplyError, Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.fill_tmpfs import FillTmpfs
from node_agent.steps.mark_file import MarkFile

from .groups import KIB, MIB, meminfo_kib

LEAST_MIB = 96
"""So much memory stays available on the node when it is full."""

_NAME = "app-segment"
_OTHER = 65533


class MemoryPlace(Target):
    """A mounted tmpfs, and the user whose file is to fill it."""

    mounted_at: str
    uid: int
    gid: int

    def path(self, tag: str) -> str:
        """The file."""
        return f"{self.mounted_at}/{_NAME}.{tag}"

    def describe(self) -> str:
        return f"the tmpfs at {self.mounted_at}, by a file of user {self.uid}"


class ShmFull(Fault):
    """A file of an ordinary user takes all the room of a tmpfs, in memory for real.

    Whoever makes shared memory (shm_open), or a temporary file there, gets ENOSPC, root too; a program that has
    mapped a file without its blocks gets SIGBUS when it first touches a page.
    """

    name: ClassVar[str] = "shm_full"
    summary: ClassVar[str] = "shared memory (/dev/shm) or another tmpfs has no room left"
    operator_sees: ClassVar[str] = (
        "'No space left on device' from whatever uses shared memory, such as a database that starts parallel "
        "workers, or SIGBUS in a process that touches a new page of it; df says 100 % for /dev/shm while all "
        "disks have room, and shared memory in free is high"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"leave_mib": 8})

    mount: str = Field(default="/dev/shm", description="where the tmpfs is mounted")  # noqa: S108
    owner: str = Field(default="nobody", description="user, by name or number, whose file it is; never root")
    leave_mib: int = Field(default=0, ge=0, le=1 << 20, description="MiB that are left")

    def locate(self, reader: Reader, facts: Facts) -> MemoryPlace:
        wanted = "/" + self.mount.strip("/")
        kinds = {m.target: m.fstype for m in facts.mounts}
        usable = ", ".join(sorted(t for t, kind in kinds.items() if kind == "tmpfs" and not _is_system(t)))
        if kinds.get(wanted) != "tmpfs":
            raise Refusal(f"mount: there is no tmpfs at {wanted}", field="mount", allowed=f"one of: {usable}")
        if _is_system(wanted):
            raise Refusal(
                f"mount: the system itself lives in {wanted}", field="mount", allowed=f"one of: {usable}"
            )
        room = reader.space.room(wanted)
        if not room.size:
            raise Refusal(f"mount: {wanted} has no limit", field="mount", allowed="one with a size")
        takes, available = room.available // MIB - self.leave_mib, meminfo_kib(reader, "MemAvailable") // KIB
        if available - takes < LEAST_MIB:
            raise Refusal(
                f"leave_mib: filling {wanted} takes {takes} MiB, and {available} MiB are available",
                field="leave_mib", allowed=f"{takes + self.leave_mib - available + LEAST_MIB} or more",
            )  # fmt: skip
        uid, gid = _user(reader, self.owner)
        return MemoryPlace(mounted_at=wanted, uid=uid, gid=gid)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, MemoryPlace)
        fill = FillTmpfs(
            path=target.path(tag),
            mount=target.mounted_at,
            uid=target.uid,
            gid=target.gid,
            leave_mib=self.leave_mib,
        )
        return (MarkFile(name=tag, text=f"{fill.path} takes the room"), fill)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, MemoryPlace)
        return PlanNotes(
            backend="fallocate",
            covers=("every new page of a file there, of everybody", "POSIX shared memory, where it is /dev/shm"),
            not_covered=(
                "shared memory of System V and anonymous mappings: they are not in a mounted file system",
            ),
            warnings=("the file takes memory, and no process has it: killing one gives nothing back",),
        )

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        assert isinstance(target, MemoryPlace)
        other = _OTHER if target.uid != _OTHER else _OTHER + 1
        if not self.leave_mib and not reader.space.refuses_data(target.mounted_at, other):
            raise ApplyError(f"user {other} can still write to {target.mounted_at}")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, MemoryPlace)
        room, there = reader.space.room(target.mounted_at), reader.exists(target.path(tag))
        full = room.available <= (self.leave_mib + 1) * MIB
        notes = [] if there else [f"{target.path(tag)} is gone: somebody has removed it"]
        notes += [] if full else ["somebody has freed room meanwhile; it is not taken again"]
        counters = {"available_bytes": room.available, "shmem_kib_of_the_node": meminfo_kib(reader, "Shmem")}
        return Evidence(armed=full and there, hits=0, counters=counters, notes=tuple(notes))


def _is_system(target: str) -> bool:
    return target in ("/", "/run") or target.startswith(("/run/", "/sys/", "/proc/", "/dev/hugepages"))


def _user(reader: Reader, wanted: str) -> tuple[int, int]:
    """User and group number, as /etc/passwd has them. Raises :class:`Refusal`."""
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
        raise Refusal("owner: the file is to be somebody else's", field="owner", allowed=allowed)
    return uid, gid
