"""The page cache of single ranges of a file or block device: what is in it, and getting it out.

Source: mincore(2), posix_fadvise(2), sync_file_range(2). POSIX_FADV_DONTNEED says nothing of what it leaves in:
pages that are mapped, dirty or under I/O, and large folios that reach over the ends of the range. So the answer is
always read back, and the range widened until the folio fits.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence

from node_agent.host.libc import check, libc

PAGE = mmap.PAGESIZE
WINDOWS = (PAGE, 64 << 10, 512 << 10, 2 << 20, 8 << 20)
"""Bytes to which a range is widened in turn: folios are naturally aligned, and at most 2 MiB on x86-64."""

_PROT_NONE, _MAP_SHARED = 0, 1
_SYNC_ALL = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER


def aligned(offset: int, length: int, unit: int) -> tuple[int, int]:
    """The smallest (offset, length) of whole `unit`s that holds the range."""
    start = offset // unit * unit
    end = -(-(offset + length) // unit) * unit
    return start, end - start


def resident(fd: int, offset: int, length: int) -> int:
    """How many pages of a range are in the page cache."""
    start, span = aligned(offset, length, PAGE)
    address = libc().mmap(None, span, _PROT_NONE, _MAP_SHARED, fd, start)
    check(address)
    try:
        flags = ctypes.create_string_buffer(span // PAGE)
        check(libc().mincore(address, span, flags))
        return sum(flag & 1 for flag in flags.raw)
    finally:
        libc().munmap(address, span)


def write_back(fd: int, offset: int, length: int) -> None:
    """Write the dirty pages of a range to where they belong, and wait for it."""
    start, span = aligned(offset, length, PAGE)
    check(libc().sync_file_range(fd, start, span, _SYNC_ALL))


def drop(fd: int, offset: int, length: int) -> bool:
    """Write back and evict a range; True when none of it is in the page cache any more."""
    for window in WINDOWS:
        start, span = aligned(offset, length, window)
        write_back(fd, start, span)
        os.posix_fadvise(fd, start, span, os.POSIX_FADV_DONTNEED)
        if not resident(fd, offset, length):
            return True
    return False


def within_pages(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges in whole pages, those that touch joined into one."""
    joined: list[tuple[int, int]] = []
    for start, span in sorted(aligned(offset, length, PAGE) for offset, length in ranges):
        if joined and start <= sum(joined[-1]):
            joined[-1] = (joined[-1][0], max(sum(joined[-1]), start + span) - joined[-1][0])
        else:
            joined.append((start, span))
    yield from joined
