"""Certain pages of one file or device out of the page cache, so that reads reach the disk."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo


class DropPages(Step):
    """Writes back what is dirty in the ranges, then evicts them. `ranges` are (offset, length) in bytes.

    Nothing is lost and nothing has to be put back: the next reader fills the cache again. So `revert` does
    nothing. What cannot be evicted (mapped by a process) stays; the fault's evidence says so.
    """

    kind: Literal["drop_pages"] = "drop_pages"
    path: str
    ranges: tuple[tuple[int, int], ...]
    why: str = "so that reads reach the disk"

    def describe(self) -> str:
        size = sum(length for _, length in self.ranges)
        return f"write back and drop {size} bytes of {self.path} from the page cache, {self.why}"

    def resources(self) -> tuple[Resource, ...]:
        return ()

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        host.disk.drop_pages(self.path, self.ranges)

    def revert(self, host: Host, undo: Undo | None) -> None:
        """Nothing to take back."""

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return ()
