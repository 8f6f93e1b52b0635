"""Lines of a configuration file, and what was there."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from node_agent.edits import Edit, apply_edits, digest, standing, take_back
from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.host.settings import beside
from node_agent.steps.base import Resource, Step, Undo


class FileEdit(Step):
    """Changes lines of a file, or makes it where `before` is empty; reverting brings back what was there.

    An untouched file comes back byte for byte with its time of change; mode, owner and attributes are never
    changed. In one that somebody has changed meanwhile, only our lines are taken back, and where somebody has
    changed these, theirs stay: nothing of ours is left then, so reverting twice equals once. A reboot keeps files.
    """

    volatile: ClassVar[bool] = False

    kind: Literal["file_edit"] = "file_edit"
    path: str = Field(pattern=r"^/")
    tag: str
    edits: tuple[Edit, ...]
    before: str = ""
    after: str
    mtime_ns: int = 0

    def describe(self) -> str:
        words = "; ".join(f"{edit.old.strip()!r} becomes {edit.new.strip()!r}" for edit in self.edits)
        return f"in {self.path}: {words}" if self.before else f"make {self.path}: {self.edits[0].new.strip()!r}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", self.path),)

    def capture(self, reader: Reader) -> Undo:
        now = reader.settings.file(self.path)
        if self.before == self.after:
            raise ConflictError(f"{self.path} says so already")
        if (digest(now.data) if now else "") != self.before:
            raise ConflictError(f"somebody is changing {self.path}")
        return {}

    def apply(self, host: Host) -> None:
        now = host.settings.file(self.path)
        host.settings.replace(self.path, apply_edits(now.data if now else b"", self.edits), self.tag)

    def revert(self, host: Host, undo: Undo | None) -> None:
        now = host.settings.file(self.path)
        if not self.before:
            host.settings.remove(self.path, self.tag)
            return
        host.settings.sweep(self.path, self.tag)
        if now is None or digest(now.data) == self.before:
            return
        data = take_back(now.data, self.edits)
        if data != now.data:
            whole = digest(data) == self.before
            host.settings.replace(self.path, data, self.tag, self.mtime_ns if whole else 0)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        now = reader.settings.file(self.path)
        strays = (beside(self.path, self.tag),) if reader.exists(beside(self.path, self.tag)) else ()
        if now is None or digest(now.data) == self.before:
            return strays
        if not self.before:
            return (f"{self.path} is still there", *strays)
        left = tuple(f"{self.path} still says {edit.new.strip()!r}" for edit, _ in self.standing(now.data))
        return (*left, *strays)

    def standing(self, data: bytes) -> list[tuple[Edit, int]]:
        """The edits that are in the file."""
        return standing(data, self.edits)
