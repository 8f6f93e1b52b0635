"""inodes_full: a data disk has space but no inodes, because of a great many empty files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import ApplyError, Refusal
from node_agent.fault import Evidence, Facts, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.take_inodes import TakeInodes

from .crowding import CrowdedPlace, CrowdingFault, begin, place_of, room_counters

MAX_INODES = 250_000
"""Files to be made: 0.3 ms each in an emulated machine, and they have to be there before the agent goes on."""

_NAME = "sessions"
_SLACK = 64
"""XFS makes and frees inodes by 64."""


class InodesFull(CrowdingFault):
    """Empty files of an ordinary user take all inodes of a file system.

    Nobody can make anything any more: no inode is kept for root. Files that are there can be written and grow.
    """

    name: ClassVar[str] = "inodes_full"
    summary: ClassVar[str] = "a data disk has no inodes left, because of a great many empty files"
    operator_sees: ClassVar[str] = (
        "ENOSPC ('No space left on device') from everything that makes a file, while df says there is space; "
        "df -i says 100 %, and one directory holds a great many empty files; the kernel logs nothing"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"leave": 10})

    leave: int = Field(default=0, ge=0, le=1 << 32, description="inodes that are left")

    def locate(self, reader: Reader, facts: Facts) -> CrowdedPlace:
        place = super().locate(reader, facts)
        free = reader.space.room(place.mounted_at).inodes_free
        if free > MAX_INODES + self.leave:
            raise Refusal(
                f"disk: {place.mounted_at} has {free} free inodes, which takes too long", field="disk",
                allowed=f"one with at most {MAX_INODES} (mkfs.ext4 -N, mkfs.xfs -i maxpct=), or leave",
            )  # fmt: skip
        return place

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of(target)
        path = place.path(_NAME, tag)
        take = TakeInodes(
            path=path, mount=place.mounted_at, device=place.disk, uid=place.uid, gid=place.gid, leave=self.leave
        )
        return (*begin(place, tag, f"files in {path} take the inodes"), take)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        warnings = ["the inodes are taken once: what others free later they can have again"]
        if place_of(target).fstype == "xfs":
            warnings.append("XFS makes inodes out of free space, up to its imaxpct: that space is taken meanwhile")
        return PlanNotes(
            backend="empty files",
            covers=("everything that makes a file, directory, link or socket, root's too",),
            not_covered=("writes to files that are there",),
            warnings=tuple(warnings),
        )

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        place = place_of(target)
        if not self.leave and not reader.space.refuses_files(place.mounted_at):
            raise ApplyError(f"files can still be made at {place.mounted_at}")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of(target)
        path = place.path(_NAME, tag)
        counters = dict(room_counters(reader, place))
        full, there = counters["free_inodes"] <= self.leave + _SLACK, reader.exists(path)
        notes = [] if there else [f"{path} is gone: somebody has removed it"]
        notes += [] if full else ["somebody has freed inodes meanwhile; they are not taken again"]
        return Evidence(armed=full and there, hits=0, counters=counters, notes=tuple(notes))
