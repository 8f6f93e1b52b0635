"""A device-mapper device of the injection's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.dm_names import TableLine, numbers, resolved


class DmDevice(Step):
    """Makes a device; reverting removes it.

    Reverting is by name, and the name bears the id of the injection: `capture` refuses a name that is taken, so
    what has the name later was made here, whole or half. Removing what is not there is fine, so twice equals once.
    """

    kind: Literal["dm_device"] = "dm_device"
    name: str = Field(min_length=1, max_length=127)
    table: tuple[TableLine, ...]
    messages: tuple[str, ...] = ()
    """Sent to the target at sector 0 in order, once the device is there."""

    def describe(self) -> str:
        kinds = ", ".join(dict.fromkeys(line.kind for line in self.table))
        return f"make device {self.name} ({kinds}, {self.table[-1].end} sectors)"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("dm", self.name),)

    def capture(self, reader: Reader) -> Undo:
        if reader.dm.info(self.name) is not None:
            raise ConflictError(f"there is a device-mapper device {self.name} already")
        return {}

    def apply(self, host: Host) -> None:
        known = numbers(host, self.table)
        host.dm.create(self.name, [resolved(line, known) for line in self.table])
        for text in self.messages:
            host.dm.message(self.name, 0, text)

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.dm.remove(self.name)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        info = reader.dm.info(self.name)
        return (f"device {self.name} ({info.number}) is still there",) if info else ()
