"""What a solver says that it used is kept, and nothing else gets into the record that way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.run.solvers.usage import LONGEST, USAGE, keep_usage


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "desk").mkdir()
    return tmp_path / "desk"


def test_it_is_kept_as_it_is(desk: Path) -> None:
    artifacts = desk.parent / "artifacts"
    assert not keep_usage(desk, artifacts) and list(artifacts.iterdir()) == []
    (desk / USAGE).write_bytes(b'{"tokens": 7}\xff')
    assert keep_usage(desk, artifacts) and (artifacts / USAGE).read_bytes() == b'{"tokens": 7}\xff'
    (desk / USAGE).write_bytes(b"x" * (2 * LONGEST))
    assert keep_usage(desk, artifacts) and (artifacts / USAGE).stat().st_size == LONGEST


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_is_none(desk: Path, kind: str) -> None:
    secret = desk.parent / "secret"
    secret.write_text("key")
    if kind == "link":
        (desk / USAGE).symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(desk / USAGE)
    else:
        (desk / USAGE).mkdir()
    assert not keep_usage(desk, desk.parent / "artifacts")
    assert list((desk.parent / "artifacts").iterdir()) == []


def test_a_record_that_takes_nothing_stops_nothing(desk: Path) -> None:
    (desk / USAGE).write_text("{}")
    assert not keep_usage(desk, desk.parent / "nowhere")
