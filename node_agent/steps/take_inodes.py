"""A directory of empty files that takes up the inodes of a data disk, as sessions nobody cleans up do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Undo
from node_agent.steps.marked_place import MarkedPlace


class TakeInodes(MarkedPlace):
    """Makes a directory of user `uid` with so many empty files that `leave` inodes are left.

    Reverting removes the files and the directory. Files that others put there stay, and it with them: then that is
    left over.
    """

    kind: Literal["take_inodes"] = "take_inodes"
    uid: int = Field(ge=1)
    gid: int = Field(ge=0)
    leave: int = Field(ge=0)

    def describe(self) -> str:
        rest = f"but {self.leave} " if self.leave else ""
        return f"make {self.path}, of user {self.uid}, with empty files for all {rest}free inodes"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", f"inodes at {self.mount}"),)

    def capture(self, reader: Reader) -> Undo:
        free = reader.space.room(self.mount).inodes_free
        if free <= self.leave:
            raise ConflictError(f"{self.mount} has only {free} free inodes as it is")
        return super().capture(reader)

    def apply(self, host: Host) -> None:
        host.space.take_inodes(self.path, self.uid, self.gid, self.leave)
