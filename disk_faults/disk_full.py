"""disk_full: a data disk has no space left for anybody but root, because of somebody's file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

import node_agent
from node_agent.errors import ApplyError
from node_agent.fault import Evidence, Facts, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.fill_space import MIB, FillSpace
from node_agent.steps.helper_process import HelperProcess

from .crowding import CrowdingFault, another_user, begin, place_of, room_counters

_NAME = "app-debug.log"
_SLACK = MIB
"""Space that comes and goes with the metadata of others."""


class DiskFull(CrowdingFault):
    """A file of an ordinary user takes all the space that ordinary users can have.

    By default at once. With `grow_mib_s` it is written line by line, as a log that nobody rotates, and goes on
    taking whatever others free. What the file system keeps for root stays: root can go on writing, on ext4.
    """

    name: ClassVar[str] = "disk_full"
    summary: ClassVar[str] = "a data disk has no space left, because of one large file"
    operator_sees: ClassVar[str] = (
        "ENOSPC ('No space left on device') from writes of every service that is not root, df says 100 %, and du "
        "finds one large file of a user who has nothing to do with the services; the kernel logs nothing, and "
        "on ext4 root can still write, so a test as root goes well"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"leave_mib": 16}, {"grow_mib_s": 8})

    leave_mib: int = Field(
        default=0, ge=0, le=1 << 20, description="MiB that users who are not root can still have"
    )
    grow_mib_s: int = Field(
        default=0, ge=0, le=1024, description="MiB a second by which the file is written; 0: it is there at once"
    )

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of(target)
        path = place.path(_NAME, tag)
        fill = FillSpace(
            path=path, mount=place.mounted_at, device=place.disk, uid=place.uid, gid=place.gid,
            leave_mib=self.leave_mib, at_once=not self.grow_mib_s,
        )  # fmt: skip
        first = begin(place, tag, f"{path} takes the space")
        if not self.grow_mib_s:
            return (*first, fill)
        payload = {
            "path": path, "uid": place.uid, "gid": place.gid, "mib_s": self.grow_mib_s,
            "leave": self.leave_mib * MIB,
        }  # fmt: skip
        script = Path(node_agent.__file__).with_name("grower.py")
        helper = HelperProcess(
            name=tag, title=f"write {path} at {self.grow_mib_s} MiB/s",
            argv=(sys.executable, "-I", "-S", str(script)), payload=json.dumps(payload),
        )  # fmt: skip
        return (*first, fill, helper)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of(target)
        left_out = ["writes within blocks that a file has already: they need no space"]
        if place.fstype == "ext4":
            left_out.append("root, who can have the blocks that the file system keeps for him")
        warnings = ["the space is taken once: what others free later they can have again"]
        if self.grow_mib_s:
            warnings = [
                f"it takes a while: {self.grow_mib_s} MiB a second are written to the disk until it is full"
            ]
            if place.in_a_file:
                warnings.append("the disk lies in a file: if that is sparse, it grows on the disk below as well")
        return PlanNotes(
            backend="growing file" if self.grow_mib_s else "fallocate",
            covers=("every write of a user who is not root that needs another block, and what follows from it",),
            not_covered=tuple(left_out),
            warnings=tuple(warnings),
        )

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        place = place_of(target)
        if self.grow_mib_s or self.leave_mib:
            return
        uid = another_user(place.uid)
        if not reader.space.refuses_data(place.mounted_at, uid):
            raise ApplyError(f"user {uid} can still write to {place.mounted_at}")

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place = place_of(target)
        path = place.path(_NAME, tag)
        info = reader.file_info(path) if reader.exists(path) else None
        counters = dict(room_counters(reader, place))
        counters["file_bytes"] = info.size if info else 0
        full = counters["available_bytes"] <= self.leave_mib * MIB + _SLACK
        notes = [] if reader.exists(path) else [f"{path} is gone: somebody has removed it"]
        if self.grow_mib_s:
            alive = bool(reader.helpers.pids(tag))
            armed = alive and reader.exists(path)
            notes += [] if alive else ["the process that writes it has ended"]
            notes += [] if full else ["it is still growing"]
        else:
            armed = full and reader.exists(path)
            notes += [] if full else ["somebody has freed space meanwhile; it is not taken again"]
        return Evidence(armed=armed, hits=0, counters=counters, notes=tuple(notes))
