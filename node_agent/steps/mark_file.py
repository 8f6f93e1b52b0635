"""A file that bears the mark of an injection whose changes have no names: settings, flags, limits."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

DIRECTORY = "/run/groundfault"


class MarkFile(Step):
    """Makes /run/groundfault/`name` with one line of text; reverting removes it, and gone already is fine.

    It tells people and the residue whose the values are that are changed while it is there.
    """

    kind: Literal["mark_file"] = "mark_file"
    name: str
    text: str

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{DIRECTORY}/{self.name}"

    def describe(self) -> str:
        return f"make {self.path} while this is in force: {self.text}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", self.path),)

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        host.write_text(self.path, f"{self.text}\n")

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.remove_file(self.path)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return (f"{self.path} is still there",) if reader.exists(self.path) else ()
