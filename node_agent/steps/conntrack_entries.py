"""Entries that fill the connection tracking table: whoever makes them, this step takes them away."""

from __future__ import annotations

from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo


class ConntrackEntries(Step):
    """Stands for the entries that :mod:`node_agent.workers.conntrack_worker` makes; applying does nothing.

    They are known by their addresses, which nobody else has, so one injection at a time can have them. Reverting
    deletes those that are there; none is fine, so twice equals once. The kernel ends those that nobody renews.
    """

    kind: Literal["conntrack_entries"] = "conntrack_entries"
    name: str

    def describe(self) -> str:
        return f"take away the entries of {self.name} from the connection table in the end"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", "entries of 240.0.0.0/8 in the connection table"),)

    def capture(self, reader: Reader) -> Undo:
        there = reader.flows.fillers()
        if there:
            raise ConflictError(f"the connection table has {there} entries of 240.0.0.0/8 already")
        return {}

    def apply(self, host: Host) -> None:
        return

    def revert(self, host: Host, undo: Undo | None) -> None:
        if host.flows.fillers():
            host.flows.clear_fillers()

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        there = reader.flows.fillers()
        return (f"{there} entries of 240.0.0.0/8 are in the connection table",) if there else ()
