"""A device that holds I/O back lets it go, before anything above it is changed."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.dm_names import TableLine, numbers, resolved


class DmLetGo(Step):
    """Changes nothing; reverting gives device `name` the table `lines`, at which its I/O goes on at once.

    A swap of the table above waits for all I/O in flight, so what hangs below has to be let go first: dm-delay
    hands on what it holds when its own table is swapped. Last of a fault's steps, so the first to be reverted.
    """

    kind: Literal["dm_let_go"] = "dm_let_go"
    name: str
    lines: tuple[TableLine, ...]

    def describe(self) -> str:
        return f"at the end: let go what {self.name} holds back"

    def resources(self) -> tuple[Resource, ...]:
        return ()

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        """Nothing yet."""

    def revert(self, host: Host, undo: Undo | None) -> None:
        if host.dm.info(self.name) is None:
            return
        known = numbers(host, self.lines)
        plain = [resolved(line, known) for line in self.lines]
        if tuple(plain) != host.dm.table(self.name):
            host.dm.swap(self.name, plain)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        """Nothing of its own: the device belongs to another step."""
        return ()
