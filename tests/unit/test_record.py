"""Records: written in stages, read at any moment, and what happens when the disk is full."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.run.record import RecordWriter, Run, read_record
from labctl.run.verdict import Finding, Outcome, Verdict

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
RUN = Run(id="r1", problem="slow", catalogue="abc", solver="none", seed=7, lab="default", started=NOW)
VERDICT = Verdict(
    findings=(Finding(oracle="users", aspect="objective", outcome=Outcome.FAIL, reasons=("503",)),), declared=True
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def test_it_can_be_read_at_every_stage(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with RecordWriter(path, RUN, Clock()) as record:
        assert read_record(path).run == RUN
        record.stage("solve")
        record.event("submitted", component="disk")
        found = read_record(path)
        assert (found.run.stage, found.verdict) == ("solve", None)
        assert [(e.at_s, e.kind) for e in found.events] == [(0.5, "stage"), (1.0, "submitted")]
        assert found.events[1].data == {"component": "disk"}
        assert record.artifact("residue.txt", b"none").read_bytes() == b"none"
        record.finish(VERDICT, NOW + dt.timedelta(minutes=5))
    found = read_record(path)
    assert (found.verdict, found.run.stage, found.run.ended) == (VERDICT, "done", NOW + dt.timedelta(minutes=5))
    assert sorted(p.name for p in path.iterdir()) == ["artifacts", "events.jsonl", "run.json", "verdict.json"]


def test_an_event_that_was_cut_short_never_happened(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with RecordWriter(path, RUN, Clock()) as record:
        record.event("one")
        record.event("two")
    events = path / "events.jsonl"
    whole = events.read_bytes()
    for size in range(len(whole) + 1):
        events.write_bytes(whole[:size])
        assert len(read_record(path).events) == whole[:size].count(b"\n")


def test_a_disk_that_is_full_costs_events_and_not_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "record"
    with RecordWriter(path, RUN, Clock()) as record:
        assert (path / ".reserve").stat().st_blocks * 512 >= 1 << 20
        record.close()
        (path / "events.jsonl").unlink()
        (path / "events.jsonl").symlink_to("/dev/full")
        record._events = os.open(path / "events.jsonl", os.O_WRONLY)
        with pytest.raises(LabError, match="no room for the record"):
            record.event("too much")
        record.finish(VERDICT, NOW, aborted="the record's disk was full")
        assert not (path / ".reserve").exists()
    (path / "events.jsonl").unlink()
    assert read_record(path).run.aborted == "the record's disk was full"


def test_what_is_no_record_and_what_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is no record"):
        read_record(tmp_path)
    path = tmp_path / "record"
    RecordWriter(path, RUN, Clock()).close()
    with pytest.raises(LabError, match="already"):
        RecordWriter(path, RUN, Clock())
    text = (path / "run.json").read_text()
    newer, negative = text.replace('"format": 1', '"format": 2'), text.replace('"seed": 7', '"seed": -7')
    for damaged, said in ((newer, "format 2"), (negative, "damaged"), ("[]", "damaged"), ("{", "damaged")):
        (path / "run.json").write_text(damaged)
        with pytest.raises(LabError, match=said):
            read_record(path)


def test_an_artifact_stays_in_its_place(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "record", RUN, Clock()) as record:
        for name in ("../run.json", "a/b", "/etc/passwd"):
            with pytest.raises(ValueError, match="no plain file name"):
                record.artifact(name, b"")
