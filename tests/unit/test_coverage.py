"""The coverage list: whole, without contradictions, and what the page and the plans say of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ebpf import coverage
from ebpf.coverage import ENTRIES, Backend
from ebpf.operations import FAMILIES
from tests.vm import calls

ROOT = Path(__file__).parents[2]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def test_it_has_every_entry_of_the_witness_once() -> None:
    witness = calls.entries()
    assert set(ENTRIES) == set(FAMILIES) == set(witness)
    for family, entries in ENTRIES.items():
        assert sorted(entries.all) == list(witness[family]), family


def test_remarks_are_about_entries_that_there_are() -> None:
    known = {entry for entries in ENTRIES.values() for entry in entries.all}
    for remarks in (coverage.EXISTS_FROM, coverage.HOOKED_FROM, coverage.OWN_ANSWER, coverage.KIND):
        assert set(remarks) <= known
    hooked = {entry for family in ENTRIES for entry in coverage.failing(family, "security")}
    assert set(coverage.HOOKED_FROM) | set(coverage.OWN_ANSWER) <= hooked
    assert set(coverage.BEYOND) <= set(FAMILIES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", ENTRIES)
def test_a_plan_names_each_entry_once(family: str, backend: Backend) -> None:
    named = [*coverage.covered(family, backend), *coverage.not_covered(family, backend)]
    assert sorted(text.split()[0] for text in named) == sorted(ENTRIES[family].all)


def test_hooks_and_calls_are_there_where_something_is_covered() -> None:
    for name, family in FAMILIES.items():
        assert bool(coverage.covered(name, "security")) == bool(family.hooks), name
        assert bool(coverage.covered(name, "override")) == bool(family.calls), name


def test_what_differs_between_kernels() -> None:
    assert not coverage.exists("io_uring_bind", (6, 1)) and coverage.exists("io_uring_bind", (6, 12))
    assert "splice_to_socket" not in coverage.failing("send", "security", (6, 1))
    assert "splice_to_socket (from Linux 6.5)" in coverage.covered("send", "security")
    assert coverage.answer("mmap_private", "security", "EIO", (6, 1)) == "ENOMEM"
    assert coverage.answer("mmap_private", "security", "EIO", (6, 12)) == "EIO"
    assert coverage.answer("brk", "security", "EIO", (6, 12)) == "ENOMEM"
    assert coverage.answer("brk", "override", "EIO", (6, 12)) == "EIO"
    assert "brk (ENOMEM)" in coverage.covered("memory", "security")


def test_by_kind() -> None:
    read = coverage.covered("read", "security")
    fit, other = coverage.by_kind("read", read, ("regular", "block"))
    assert set(other) == {"read_pipe", "read_socket", "read_eventfd", "getdents64"}
    assert {*fit, *other} == set(read)
    assert coverage.by_kind("read", read, ()) == (read, ())
    threads, processes = coverage.by_kind("fork", coverage.covered("fork", "security"), ("thread",))
    assert set(threads) == {"clone_thread", "pthread_create"} and "vfork" in processes


def test_the_page_is_what_the_list_gives() -> None:
    done = subprocess.run(
        (sys.executable, ROOT / "scripts" / "generate-syscalls", "--check"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
