"""latent_sector_error: sectors that cannot be read any more, and that a rewrite heals, as on a real disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from node_agent.errors import ConflictError, Refusal
from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import SECTOR, Reader
from node_agent.schedule import Schedule, ScheduleValue
from node_agent.steps import Step

from . import showing
from .bad_sectors import Backend, BadSectors, steps_for
from .data_disks import DataDisk
from .disk_place import Chosen, DiskPlace, PlacedFault
from .places import MAX_SECTORS, UNIT_SECTORS, Piece, parse_range, pieces_of_range

_COVERS = (
    "read", "pread64", "readv", "preadv2", "io_uring", "mmap (SIGBUS)", "sendfile", "splice",
    "copy_file_range (where it reads: a clone shares the bad sectors)", "O_DIRECT",
)  # fmt: skip


_BELOW = Missing(
    capability="hypervisor",
    reason="the machine below a kernel is out of its agent's reach",
    remedy="labctl plants it from outside, in a lab of virtual machines; here --backend dm",
)


class LatentSectorError(PlacedFault):
    """Bad sectors under a file, or in a range of a data disk.

    A read of them fails with EIO and the kernel logs it. A write of the whole block succeeds, goes to the true
    place on the disk, and heals the block at once. `permanent` sectors stay bad: writes go through, reads go on
    failing.
    """

    name: ClassVar[str] = "latent_sector_error"
    summary: ClassVar[str] = "sectors of a data disk cannot be read until they are rewritten"
    operator_sees: ClassVar[str] = (
        "EIO from one file while its neighbours are well, and 'I/O error, dev …, sector …' in the kernel log; "
        "the error was there all along and shows only when somebody reads that place"
    )
    by_default: ClassVar[Chosen] = "file"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"file": "/srv/data/**", "sectors": 24, "seed": 7},
        {"range": "2048+8"},
        {"permanent": True},
        {"schedule": "burst:2/1"},
    )

    sectors: int = Field(
        default=UNIT_SECTORS, ge=1, le=MAX_SECTORS,
        description="how many 512-byte sectors of the file go bad, rounded up to its blocks (of at most 4 KiB)",
    )  # fmt: skip
    permanent: bool = Field(default=False, description="a rewrite does not heal")
    schedule: Schedule = Field(default=ScheduleValue(), description="always, or burst:ON/OFF in seconds")
    backend: Literal["auto", "dm", "hypervisor"] = Field(
        default="auto",
        description="dm: in the node's kernel; hypervisor: in its virtual disk; auto: there, where that can be",
    )

    @field_validator("sectors")
    @classmethod
    def _sectors_of_a_file(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("range") and value != UNIT_SECTORS:  # the default, written out, is no contradiction
            raise ValueError("range says how many sectors; leave this out")
        return value

    @field_validator("schedule")
    @classmethod
    def _schedule_of_a_place(cls, value: ScheduleValue) -> ScheduleValue:
        if value.kind not in ("always", "burst"):
            raise ValueError(
                f"{value.kind} counts calls, but a sector is bad by its place, whoever asks; "
                "allowed: always, burst:ON/OFF"
            )
        if max(value.a, value.b) > 3600:
            raise ValueError("a burst is at most burst:3600/3600")
        return value

    def _wanted(self) -> tuple[str, ...]:
        needs = ["dm.error", "loop.direct_io"]
        if self.schedule.kind == "burst":
            needs.append("dm.flakey_error_reads")
        return tuple(needs)

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        if self.backend == "hypervisor":
            return (_BELOW,)
        healing = ("dm.snapshot",) if self.schedule.kind == "burst" or not facts.can("dm.dust") else ()
        return facts.missing(*self._wanted(), *(() if self.permanent else healing))

    def _backend(self, facts: Facts) -> Backend:
        if self.permanent:
            return "flakey" if facts.can("dm.flakey_error_reads") else "error"
        return "snapshot" if facts.can("dm.snapshot") else "dust"

    def sectors_wanted(self) -> int:
        return self.sectors

    def locate(self, reader: Reader, facts: Facts) -> BadSectors:
        target = self._target(facts, self.find_place(reader, facts))
        if target.file:
            _compare(reader, target)
        return target

    def in_range(self, disk: DataDisk, made: Mapping[str, str]) -> tuple[Piece, ...]:
        start, count = parse_range(self.range)
        return pieces_of_range(start, count, disk.table, disk.size, made)

    def _target(self, facts: Facts, place: DiskPlace) -> BadSectors:
        found = place.model_dump(exclude={"backend"})
        return BadSectors(
            **found, backend=self._backend(facts), on_s=int(self.schedule.a), off_s=int(self.schedule.b)
        )

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        return steps_for(_ours(target), tag)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        bad = _ours(target)
        warnings = [
            "while the fault stands the disk takes no discards (fstrim says 'not supported')",
        ]
        if not bad.file and bad.mounted_at:
            warnings.append(
                f"the range may hold metadata of the {bad.fstype} at {bad.mounted_at}: a file system that shuts "
                "down, aborts its journal or goes read-only because of it stays so after the recovery"
            )
        if bad.backend == "error":
            warnings.append("this kernel cannot fail reads alone: writes of the bad sectors fail too")
        return PlanNotes(
            backend=f"dm-{bad.backend}",
            covers=_COVERS,
            not_covered=tuple(_not_covered(bad)),
            warnings=tuple(warnings),
        )

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        showing.prove(reader, _ours(target))

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return showing.evidence(reader, _ours(target), tag, log_mark)


def _ours(target: Target) -> BadSectors:
    if not isinstance(target, BadSectors):
        raise TypeError(f"{type(target).__name__} is not a target of this fault")
    return target


def _not_covered(bad: BadSectors) -> list[str]:
    known = ["pages that a process has mapped or dirties all the time: they cannot be evicted, evidence tells"]
    if not bad.file:
        known.append("pages of files in the range that are in the page cache already")
    if bad.backend == "snapshot":
        known.append(
            f"a direct write of less than {bad.pieces[0].length * SECTOR} bytes to a bad block: it fails with EIO "
            "instead of healing its part, and the block then stays bad until the recovery"
        )
    return known


def _compare(reader: Reader, target: BadSectors) -> None:
    """Read each piece through the file and through the device: what the mapping says must be true.

    Raises ConflictError where a piece cannot be read before any fault was planted.
    """
    for piece in target.pieces:
        path, offset, length = target.place(piece)
        try:
            by_file = reader.disk.direct_read(path, offset, length)
            by_disk = reader.disk.direct_read(target.node, piece.start * SECTOR, length)
        except OSError as error:
            raise ConflictError(
                f"file: {path} cannot be read at byte {offset} as it is: {error.strerror}"
            ) from error
        if by_disk[: len(by_file)] != by_file:
            raise Refusal(
                f"file: {path} does not lie where {target.fstype} says, or it is being written",
                field="file",
                allowed="a file that is at rest",
            )
