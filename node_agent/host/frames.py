"""Pages of memory by the frame of RAM that they lie in: what faults of single pages see of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

PAGE = 4096


@dataclass(frozen=True)
class Page:
    """A page that is in memory. `frame` is the number of its frame, `at` its address, or its offset in a file."""

    frame: int
    at: int


class FramesReader(Protocol):
    """Looking at frames: Documentation/admin-guide/mm/pagemap.rst."""

    def own_pages(self, pid: int, only: int | None = None) -> Sequence[Page]:
        """Pages of anonymous memory that this process has in RAM and nobody else maps: some from all over it, or
        the one at an address. Raises OSError.
        """

    def clean_pages(self, path: str, only: int | None = None) -> Sequence[Page]:
        """Pages of the page cache that a file has, that are as on the disk and that no process maps: some from all
        over it, or the one at an offset. Raises OSError.
        """

    def is_poisoned(self, frame: int) -> bool:
        """Whether the kernel has taken a frame for broken."""
