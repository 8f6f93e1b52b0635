"""A second device with the table that a disk has now, for a fault of the whole disk to stand on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo


class DmBelow(Step):
    """Makes device `name` with the live table of `disk`; reverting removes it.

    Two devices may lead to the same sectors: nobody uses this one until the disk's own table leads to it
    (:class:`node_agent.steps.dm_on_top.DmOnTop`, reverted before this step).
    """

    kind: Literal["dm_below"] = "dm_below"
    disk: str
    name: str = Field(min_length=1, max_length=127, pattern=r"-below$")

    def describe(self) -> str:
        return f"make device {self.name} with the table that {self.disk} has"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("dm", self.name),)

    def capture(self, reader: Reader) -> Undo:
        if reader.dm.info(self.name) is not None:
            raise ConflictError(f"there is a device-mapper device {self.name} already")
        return {}

    def apply(self, host: Host) -> None:
        host.dm.create(self.name, host.dm.table(self.disk))

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.dm.remove(self.name)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        info = reader.dm.info(self.name)
        return (f"device {self.name} ({info.number}) is still there",) if info else ()
