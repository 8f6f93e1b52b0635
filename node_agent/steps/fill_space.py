"""A file that takes up the space of a data disk, as somebody's forgotten or runaway file does."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Undo
from node_agent.steps.marked_place import MarkedPlace

MIB = 1 << 20


class FillSpace(MarkedPlace):
    """Makes a file of user `uid`; reverting removes it, and what it took is free again at once.

    `at_once`: it takes all that the user can have but `leave_mib`, without writing it. What the file system keeps
    for root stays. Otherwise the file is empty, and a helper lets it grow.
    """

    kind: Literal["fill_space"] = "fill_space"
    uid: int = Field(ge=1)
    gid: int = Field(ge=0)
    leave_mib: int = Field(ge=0)
    at_once: bool = True

    def describe(self) -> str:
        if not self.at_once:
            return f"make {self.path}, of user {self.uid}"
        rest = f"all but {self.leave_mib} MiB of the space" if self.leave_mib else "all the space"
        return f"make {self.path}, of user {self.uid}, with {rest} that he can have"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", f"space at {self.mount}"),)

    def capture(self, reader: Reader) -> Undo:
        available = reader.space.room(self.mount).available
        if available <= self.leave_mib * MIB:
            raise ConflictError(f"{self.mount} has only {available // MIB} MiB left as it is")
        return super().capture(reader)

    def apply(self, host: Host) -> None:
        if self.at_once:
            host.space.fill(self.path, self.uid, self.gid, self.leave_mib * MIB)
        else:
            host.space.start_file(self.path, self.uid, self.gid)
