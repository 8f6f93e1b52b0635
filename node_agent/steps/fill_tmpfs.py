"""A file that takes up the room of a file system in memory, such as /dev/shm."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

MIB = 1 << 20
_MARK = "groundfault-"


def _marked(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or _MARK not in PurePosixPath(path).name:
        raise ValueError(f"{path!r} is no absolute path whose last part bears the mark of an injection")
    return path


class FillTmpfs(Step):
    """Makes file `path` of user `uid`, which takes all that is left there but `leave_mib`; reverting removes it.

    It really takes memory. It is gone with the power; gone already is fine, so twice equals once.
    """

    kind: Literal["fill_tmpfs"] = "fill_tmpfs"
    path: Annotated[str, AfterValidator(_marked)]
    mount: str
    uid: int = Field(ge=1)
    gid: int = Field(ge=0)
    leave_mib: int = Field(ge=0)

    def describe(self) -> str:
        rest = f"all but {self.leave_mib} MiB of the room" if self.leave_mib else "all the room"
        return f"make {self.path}, of user {self.uid}, with {rest} at {self.mount}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", f"space at {self.mount}"),)

    def capture(self, reader: Reader) -> Undo:
        if reader.exists(self.path):
            raise ConflictError(f"{self.path} is there already")
        available = reader.space.room(self.mount).available
        if available <= self.leave_mib * MIB:
            raise ConflictError(f"{self.mount} has only {available // MIB} MiB left as it is")
        return {}

    def apply(self, host: Host) -> None:
        host.space.fill(self.path, self.uid, self.gid, self.leave_mib * MIB)

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.space.clear(self.path)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return (f"{self.path} is still there",) if reader.exists(self.path) else ()
