"""readonly_remount: a file system stops as it does when it has met an error, without one of its disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.errors import ApplyError, Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.room import Loses
from node_agent.signs import Sign, in_log, rises
from node_agent.steps import Step
from node_agent.steps.filesystem_care import FilesystemCare
from node_agent.steps.mark_file import MarkFile
from node_agent.steps.stop_filesystem import StopFilesystem

from .crowding import writable
from .data_disks import find_disk

How = Literal["error", "shutdown"]

_LOG_LINES = 20
_RISK = "what was written and is not on the disk yet is lost, as it is when a file system meets a real error"


class StoppedPlace(Target):
    """A mounted file system of a data disk. `kernel_name` is what the kernel's log calls its device."""

    disk: str
    number: str
    kernel_name: str
    fstype: str
    mounted_at: str
    how: How

    def describe(self) -> str:
        return f"the {self.fstype} at {self.mounted_at} ({self.disk}, {self.kernel_name} in the kernel's log)"


class ReadonlyRemount(Fault):
    """The file system protects itself: nothing can be written to it any more.

    ext4 meets an error and turns read-only, which `/proc/mounts` does not say; Linux 6.12 answers EIO to reads,
    too. XFS shuts down, which it does at such errors, and ext4 can: then nothing can be read. The recovery is what
    an operator has to do: stop the services that use it, unmount, check, mount, start them.
    """

    name: ClassVar[str] = "readonly_remount"
    summary: ClassVar[str] = "a file system turns read-only, or shuts down, as after an error"
    operator_sees: ClassVar[str] = (
        "EROFS or EIO from every write to one file system while its disk is well, 'EXT4-fs error', 'Aborting "
        "journal' and 'Remounting filesystem read-only' in the kernel's log although /proc/mounts may go on "
        "saying rw (XFS: 'Shutting down filesystem', and reads fail too); a remount heals nothing, fsck and a "
        "fresh mount do"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"mode": "shutdown"},
        {"loses": "log", "accept_data_loss": True},
    )

    disk: str = Field(default="", description="data disk by name or mount point; none: the only one")
    mode: Literal["auto", "error", "shutdown"] = Field(
        default="auto", description="error: read-only (ext4); shutdown: dead; auto: error on ext4, shutdown on xfs"
    )
    loses: Loses = Field(
        default="nothing",
        description="nothing: all that was written gets to the disk first; data: contents of files do not; log: "
        "changes of the journal do not either, as at a real error",
    )
    accept_data_loss: bool = Field(default=False, description="needed where loses is not nothing")

    def locate(self, reader: Reader, facts: Facts) -> StoppedPlace:
        disk = find_disk(reader, facts, self.disk)
        mount = writable(disk)
        assert disk.mount is not None
        kind = disk.mount.fstype
        if self.mode == "error" and kind != "ext4":
            raise Refusal(
                f"mode: {kind} at {mount} has no such reaction", field="mode", allowed="shutdown, for it"
            )
        how: How = "error" if self.mode != "shutdown" and kind == "ext4" else "shutdown"
        if how == "error" and self.loses == "data":
            raise Refusal(
                "loses: an ext4 that meets an error aborts its journal", field="loses", allowed="nothing or log"
            )
        return StoppedPlace(
            disk=disk.name, number=disk.number, kernel_name=f"dm-{disk.number.partition(':')[2]}", fstype=kind,
            mounted_at=mount, how=how,
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = _ours(target)
        return (
            FilesystemCare(name=tag, device=place.disk, mount=place.mounted_at, flushed=self.loses == "nothing"),
            MarkFile(name=tag, text=f"the file system at {place.mounted_at} is stopped"),
            StopFilesystem(name=tag, device=place.disk, mount=place.mounted_at, how=place.how, loses=self.loses),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = _ours(target)
        error = place.how == "error"
        left_out = (
            ["reads, on kernels that only turn read-only; Linux 6.12 answers EIO to them, too"] if error else []
        )
        left_out.append(
            f"the cause: the log names {'trigger_test_error' if error else 'an ioctl'}, where a real failure "
            "names the function that met it, and shows an I/O error of the disk before it"
        )
        return PlanNotes(
            backend="ext4 error, errors=remount-ro" if error else f"shutdown of {place.fstype}",
            covers=("every write",) if error else ("every read and write that needs the disk or the log",),
            not_covered=tuple(left_out),
            warnings=(
                f"the recovery unmounts {place.mounted_at}: services that use it are stopped and started again, "
                "and a process that is no service (a login shell) keeps it stuck until it leaves",
            ),
            risks={} if self.loses == "nothing" else {"data_loss": f"{place.mounted_at}: {_RISK}"},
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        if target is None:
            return (*_ext4_signs("*", r"\S+"), *_shutdown_signs("xfs", r"\S+"))
        place = _ours(target)
        name = re.escape(place.kernel_name)
        if place.how == "error":
            return _ext4_signs(place.kernel_name, name)
        return _shutdown_signs(place.fstype, name)

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        if not _stopped(reader, _ours(target)):
            raise ApplyError(f"{_ours(target).mounted_at} can still be written to")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = _ours(target)
        counters: dict[str, int] = {}
        errors = f"/sys/fs/ext4/{place.kernel_name}/errors_count"
        if reader.exists(errors):
            counters["errors_count"] = int(reader.read_text(errors))
        mounted = reader.filesystems.mounted(place.mounted_at)
        shown = mounted.options if mounted else "nothing"
        records, lost = reader.log.since(log_mark)
        about = re.compile(rf"^(EXT4-fs|XFS).*\({'|'.join((place.kernel_name, f'device {place.kernel_name}'))}\)|"
                           rf"journal on device {re.escape(place.kernel_name)}-")  # fmt: skip
        return Evidence(
            armed=_stopped(reader, place),
            hits=0,
            counters=counters,
            log=tuple(r.text for r in records if about.search(r.text))[-_LOG_LINES:],
            log_gap=lost > 0,
            notes=(f"/proc/mounts says {shown}",),
        )


def _ext4_signs(path: str, name: str) -> tuple[Sign, ...]:
    return (
        in_log("ext4 says that it met an error", rf"EXT4-fs error \(device {name}\)"),
        in_log("the journal is aborted", rf"Aborting journal on device {name}-"),
        in_log("ext4 says that it is read-only", rf"EXT4-fs \({name}\): Remounting filesystem read-only"),
        rises("errors that ext4 has counted", f"/sys/fs/ext4/{path}/errors_count"),
    )


def _shutdown_signs(fstype: str, name: str) -> tuple[Sign, ...]:
    if fstype == "ext4":
        return (in_log("ext4 is shut down", rf"EXT4-fs \({name}\): shut down requested"),)
    return (
        in_log("XFS shuts down", rf"XFS \({name}\): .*[Ss]hut ?down"),
        in_log("XFS says what to do", rf"XFS \({name}\): Please unmount the filesystem"),
    )


def _stopped(reader: Reader, place: StoppedPlace) -> bool:
    mounted = reader.filesystems.mounted(place.mounted_at)
    return (
        mounted is not None
        and mounted.device == place.number
        and "stopped" in reader.filesystems.ailments(mounted)
    )


def _ours(target: Target) -> StoppedPlace:
    if not isinstance(target, StoppedPlace):
        raise TypeError(f"{type(target).__name__} is not a target of this fault")
    return target
