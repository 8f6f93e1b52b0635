"""Frames of RAM on the real machine, by the files of /proc that root may read.

Source: Documentation/admin-guide/mm/pagemap.rst. A frame's number is hidden from everybody without CAP_SYS_ADMIN.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from node_agent.host.frames import PAGE, Page

_ENTRY = 8
_FRAME, _EXCLUSIVE, _FILE, _SWAPPED, _PRESENT = (1 << 55) - 1, 1 << 56, 1 << 61, 1 << 62, 1 << 63
_LOCKED, _DIRTY, _LRU, _WRITEBACK, _ANON, _POISONED, _HUGE = 0, 4, 5, 8, 12, 19, 22
MOST, _SOME = 65536, 256
"""So many pages of one process or file are looked at, and so many of them closely."""

_AREA = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.p \S+ 00:00 0\s*(\S*)")


class PhysicalMemory:
    """The frames of this machine."""

    def own_pages(self, pid: int, only: int | None = None) -> Sequence[Page]:
        """Those of the heap and of private mappings without a file. The kernel splits huge pages."""
        some = _some(_mapped(pid, _areas(pid, only)))
        found = {page: _flags(page.frame) for page in some if _count(page.frame) == 1}
        # Not by the flag KSM: Linux 6.12 shows it for every anonymous page. The count tells who shares one.
        return tuple(p for p, has in found.items() if _all(has, _LRU, _ANON) and not _any(has, _POISONED))

    def clean_pages(self, path: str, only: int | None = None) -> Sequence[Page]:
        """The file is mapped here for a moment, to learn its frames: then its pages are mapped once."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = min(os.fstat(fd).st_size, MOST * PAGE)
            if not size:
                return ()
            with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) as area:
                for at in range(0, size, PAGE) if only is None else (only,):
                    area[at]
                some = _some(_mapped(os.getpid(), _area_of(fd, only), of_file=True))
                return tuple(page for page in some if _count(page.frame) == 1 and _is_clean(_flags(page.frame)))
        finally:
            os.close(fd)

    def is_poisoned(self, frame: int) -> bool:
        """By the frame's flag HWPOISON."""
        return _any(_flags(frame), _POISONED)


def _some(pages: Iterator[Page]) -> list[Page]:
    """Not more of them than can be looked at one by one, from all over."""
    found = list(pages)
    return found[:: max(1, len(found) // _SOME)]


def _is_clean(flags: int) -> bool:
    return _all(flags, _LRU) and not _any(flags, _DIRTY, _WRITEBACK, _LOCKED, _POISONED, _HUGE)


def _areas(pid: int, only: int | None) -> Iterator[tuple[int, int, int]]:
    """Writable private memory without a file: first address, end, and what to subtract for the place in it."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        found = _AREA.match(line)
        if found and (not found[3] or found[3].startswith(("[heap]", "[anon"))):
            first, end = int(found[1], 16), int(found[2], 16)
            if only is None:
                yield first, end, 0
            elif first <= only < end:
                yield only, only + PAGE, 0


def _area_of(fd: int, only: int | None) -> Iterator[tuple[int, int, int]]:
    """Where this process maps a file that it has open, once."""
    inode = f" {os.fstat(fd).st_ino} "
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if inode in line and " r--s " in line:
            first, end = (int(word, 16) for word in line.split()[0].split("-"))
            at = 0 if only is None else only
            yield first + at, end if only is None else first + at + PAGE, first
            return


def _mapped(pid: int, areas: Iterator[tuple[int, int, int]], *, of_file: bool = False) -> Iterator[Page]:
    left = MOST
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for first, end, base in areas:
            count = min((end - first) // PAGE, left)
            left -= count
            raw = os.pread(pagemap.fileno(), count * _ENTRY, first // PAGE * _ENTRY)
            for number in range(len(raw) // _ENTRY):
                entry = int.from_bytes(raw[number * _ENTRY : (number + 1) * _ENTRY], "little")
                alone = bool(entry & _EXCLUSIVE) and bool(entry & _FILE) == of_file
                if entry & _PRESENT and not entry & _SWAPPED and alone and entry & _FRAME:
                    yield Page(entry & _FRAME, first + number * PAGE - base)


def _count(frame: int) -> int:
    """How often a frame is mapped (/proc/kpagecount)."""
    return _number("/proc/kpagecount", frame)


def _flags(frame: int) -> int:
    return _number("/proc/kpageflags", frame)


def _number(path: str, frame: int) -> int:
    with suppress(OSError), Path(path).open("rb", buffering=0) as file:
        return int.from_bytes(os.pread(file.fileno(), _ENTRY, frame * _ENTRY), "little")
    return 0


def _all(flags: int, *bits: int) -> bool:
    return all(flags >> bit & 1 for bit in bits)


def _any(flags: int, *bits: int) -> bool:
    return any(flags >> bit & 1 for bit in bits)
