"""A block device in memory: a file of tmpfs under a loop device."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

PLACE = "/dev/shm"  # noqa: S108  (no temporary file: the place is the point)
"""tmpfs on every Linux with glibc (shm_overview(7)): what is there is gone with the power."""


class RamDisk(Step):
    """Makes file `name` of `size_bytes`, all zeros, and binds a loop device to it; reverting takes both away.

    Memory is used as it is written. What is in it is lost with the power, which is what it is for.
    """

    kind: Literal["ram_disk"] = "ram_disk"
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    size_bytes: int = Field(gt=0)

    @property
    def path(self) -> str:
        """The file."""
        return f"{PLACE}/{self.name}"

    def describe(self) -> str:
        return f"make a disk of {self.size_bytes // 2**20} MiB in memory"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", self.path),)

    def capture(self, reader: Reader) -> Undo:
        if reader.exists(self.path):
            raise ConflictError(f"{self.path} is there already")
        return {}

    def apply(self, host: Host) -> None:
        host.make_file(self.path, self.size_bytes)
        host.loop.attach(self.path, direct_io=False)

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.loop.detach(self.path)
        host.remove_file(self.path)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        bound = [f"{loop.path} is still bound to it" for loop in reader.loop.list() if loop.backing == self.path]
        return (*bound, *((f"{self.path} is still there",) if reader.exists(self.path) else ()))
