"""Files and disks below the page cache: where data lies, reading it from there, and evicting single pages."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from node_agent.host import Extent, fiemap, pages
from node_agent.host.bounded import within

_READ_S, _WRITE_BACK_S = 15.0, 30.0


class Disks:
    """Every error is an OSError with the kernel's errno; a disk that does not answer is a TimeoutError."""

    def extents(self, path: str, *, sync: bool = True) -> Sequence[Extent]:
        """FIEMAP, by default with SYNC: dirty data gets its place first; else its place is unknown."""
        with _opened(path, os.O_RDONLY) as file:
            return within(_WRITE_BACK_S, f"mapping {path}", lambda: fiemap.extents(file.fd, sync))

    def block_size(self, path: str) -> int:
        """Bytes of a block of the file system at `path`."""
        return os.statvfs(path).f_bsize

    def size_sectors(self, number: str) -> int:
        """Size of block device "major:minor" in 512-byte sectors (Documentation/ABI/stable/sysfs-block)."""
        return int((Path("/sys/dev/block") / number / "size").read_text())

    def direct_read(self, path: str, offset: int, length: int) -> bytes:
        """O_DIRECT read of a file or device; shorter only at its end. Raises OSError with the kernel's errno."""
        with _opened(path, os.O_RDONLY | os.O_DIRECT) as file:
            return within(_READ_S, f"reading {path}", lambda: _read(file.fd, offset, length))

    def cached(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Those of these (offset, length) byte ranges that have a page in the page cache."""
        with _opened(path, os.O_RDONLY) as file:
            return tuple(r for r in ranges if pages.resident(file.fd, *r))

    def drop_pages(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Write back, then evict only the pages of these (offset, length) byte ranges; returns what stayed.

        What stays is mapped by a process, or was made dirty again at once. Where the page cache holds larger
        units, their neighbours within the unit go too.
        """
        with _opened(path, os.O_RDONLY) as file:
            return within(
                _WRITE_BACK_S,
                f"writing back {path}",
                lambda: tuple(r for r in pages.within_pages(ranges) if not pages.drop(file.fd, *r)),
            )


class _opened:  # noqa: N801  (used like a function)
    """An open file that is closed at the end, unless a call on it is still under way: then it stays open."""

    def __init__(self, path: str, flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC)

    def __enter__(self) -> _opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, TimeoutError):  # a number in use must not be given away again
            os.close(self.fd)


def _read(fd: int, offset: int, length: int) -> bytes:
    with mmap.mmap(-1, length) as buffer:  # anonymous memory is page aligned, as O_DIRECT wants it (open(2))
        count = os.preadv(fd, [buffer], offset)
        return bytes(buffer[:count])
