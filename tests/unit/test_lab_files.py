"""Atomic files, locks, caches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.lab.files import link_or_copy, locked, prune, scratch, tail, write_atomic


def test_atomic_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lab.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new", 0o644)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["lab.json"]


def test_failed_atomic_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lab.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["lab.json"]


def test_lock_waits_says_so_and_gives_up(tmp_path: Path) -> None:
    said: list[str] = []
    with locked(tmp_path / "lock", "lab x", 1, said.append):
        assert said == []
        with pytest.raises(LabError, match="lab x"), locked(tmp_path / "lock", "lab x", 0.2, said.append):
            pytest.fail("two hold it")
    assert len(said) == 1
    with locked(tmp_path / "lock", "lab x", 0.2, said.append):
        pass
    assert len(said) == 1


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from labctl.lab.files import locked\n"
        "with locked(Path(sys.argv[1]), 'x', 1, print):\n  print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with locked(tmp_path / "lock", "x", 5, lambda _: None):
        pass


def test_tail_drops_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    assert tail(log) == ""
    log.write_bytes(b"one\n\x1b[!ptwo\x00\n\n" + b"three\n")
    assert tail(log, 2) == "[!ptwo\nthree"


def test_scratch_removes_what_a_killed_builder_left(tmp_path: Path) -> None:
    (tmp_path / ".partial-dead" / "half").mkdir(parents=True)
    with scratch(tmp_path) as work:
        assert [p.name for p in tmp_path.iterdir()] == [work.name]
    assert list(tmp_path.iterdir()) == []


def test_prune_keeps_what_was_used_last(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path.iterdir(), 2)
    assert {p.name for p in tmp_path.iterdir()} == {"new", "middle"}


def test_link_survives_deletion_of_its_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("image")
    link_or_copy(source, tmp_path / "target")
    link_or_copy(source, tmp_path / "target")
    source.unlink()
    assert (tmp_path / "target").read_text() == "image"
