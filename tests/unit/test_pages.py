"""Evicting single pages, on a real file of the machine the tests run on."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.host.disk import Disks
from node_agent.host.pages import PAGE, aligned, within_pages

SIZE = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory beside this file: /tmp may be a file system that lives in memory and has nothing to evict."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".pages-") as name:
        yield Path(name)


@pytest.fixture
def file(folder: Path) -> Iterator[str]:
    path = folder / "file"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    path.read_bytes()
    yield str(path)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.sampled_from([PAGE, 64 << 10, 2 << 20]))
def test_alignment_covers_and_is_tight(offset: int, length: int, unit: int) -> None:
    start, span = aligned(offset, length, unit)
    assert start <= offset < start + unit and start + span >= offset + length > start + span - unit


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 16)), max_size=12))
def test_joined_ranges_cover_each_page_once(ranges: list[tuple[int, int]]) -> None:
    pages = {p for o, n in ranges for p in range(o // PAGE, (o + n - 1) // PAGE + 1)}
    joined = list(within_pages(ranges))
    covered = [p for o, n in joined for p in range(o // PAGE, (o + n) // PAGE)]
    assert len(covered) == len(set(covered)) and set(covered) == pages


def test_pages_leave_the_cache_and_no_byte_is_lost(file: str) -> None:
    disk = Disks()
    everything = [(at, PAGE) for at in range(0, SIZE, PAGE)]
    if len(disk.cached(file, everything)) < len(everything):
        pytest.fail("the file system of this checkout does not show its page cache")
    assert disk.drop_pages(file, [(40 * PAGE, PAGE), (41 * PAGE, 10)]) == ()
    assert disk.cached(file, [(40 * PAGE, PAGE), (41 * PAGE, PAGE)]) == ()
    assert Path(file).read_bytes() == bytes(range(256)) * (SIZE // 256)


def test_dirty_pages_are_written_first(file: str) -> None:
    with Path(file).open("r+b") as handle:
        handle.seek(3 * PAGE)
        handle.write(b"N" * PAGE)
    disk = Disks()
    assert disk.drop_pages(file, [(3 * PAGE, PAGE)]) == ()
    assert Path(file).read_bytes()[3 * PAGE : 4 * PAGE] == b"N" * PAGE


def test_mapped_pages_stay_and_are_told(file: str) -> None:
    disk = Disks()
    with Path(file).open("rb") as handle, mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[7 * PAGE] == 0
        assert disk.drop_pages(file, [(7 * PAGE, PAGE)]) == ((7 * PAGE, PAGE),)
    assert disk.drop_pages(file, [(7 * PAGE, PAGE)]) == ()


def test_direct_read_is_of_the_disk_and_short_at_the_end(file: str) -> None:
    disk = Disks()
    assert disk.direct_read(file, PAGE, PAGE) == bytes(range(256)) * (PAGE // 256)
    assert disk.direct_read(file, SIZE, PAGE) == b""
    with pytest.raises(FileNotFoundError):
        disk.direct_read(f"{file}.gone", 0, PAGE)


def test_extents_of_a_fresh_file_have_a_place(folder: Path) -> None:
    path = folder / "fresh"
    path.write_bytes(b"x" * 65536)
    extents = Disks().extents(str(path))
    assert sum(e.length for e in extents) == 65536 and "last" in extents[-1].flags
    assert all(e.physical > 0 and "delalloc" not in e.flags for e in extents)
    assert Disks().block_size(str(path)) in (1024, 2048, 4096)
