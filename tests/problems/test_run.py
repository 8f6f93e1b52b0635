"""One problem on real nodes: its reference passes, nobody fails, for the reasons that the verdicts state."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.booking_lab import BookingLab

PROBLEM = "pg_reads_fail_intermittently"
RUN_S = 900.0
SHORT = ("--hold", "16", "--soak", "40", "--seed", "3")
"""A soak of one cycle of the load."""


def labctl(lab: BookingLab, *argv: str) -> tuple[int, Any]:
    """What labctl answers under --json."""
    done = subprocess.run(
        (sys.executable, "-m", "labctl", "--lab", lab.name, "--json", *argv),
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def events(record: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (record / "events.jsonl").read_text().splitlines()]
    return [line["data"] for line in lines if line["kind"] == kind]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def test_the_reference_passes_and_is_judged_alike_without_a_lab(booking_lab: BookingLab, record: Path) -> None:
    status, said = labctl(booking_lab, "run", PROBLEM, "--solver", "reference", "--record", str(record), *SHORT)
    assert (status, said["outcome"], said["diagnosis"]) == (0, "pass", "exact"), said
    assert set(said["dimensions"].values()) == {"pass"} and said["reasons"] == []
    assert events(record, "bitten") and not events(record, "residue") and not events(record, "unclosed")
    assert events(record, "versions")[0]["kernels"].keys() == {"w1", "w2", "w3"}
    ledger = (record / "artifacts" / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) == events(record, "ledger")[0]["lines"] > 100
    began = time.monotonic()
    again, judged = labctl(booking_lab, "judge", str(record))
    assert (again, judged["outcome"], judged["differences"]) == (0, "pass", [])
    assert time.monotonic() - began < 20, "the emulated nodes take the processors meanwhile"
    assert booking_lab.sh("w2", "test ! -e /var/lib/oncall/keys && echo closed") == "closed"
    assert json.loads((record / "run.json").read_text())["stage"] == "done"


def test_nobody_fails(booking_lab: BookingLab, record: Path) -> None:
    status, said = labctl(booking_lab, "run", PROBLEM, "--solver", "none", "--record", str(record), *SHORT)
    assert (status, said["outcome"], said["failure"]) == (1, "fail", "never_declared"), said
    assert said["dimensions"]["outcome"] == "fail" and said["dimensions"]["safety"] == "pass", said
    failed = {one["oracle"] for one in said["findings"] if one["outcome"] == "fail"}
    assert "medium_error on w2" in failed or any(one.startswith("clients") for one in failed), failed
    assert events(record, "solved") == [{"how": "ended", "diagnosis": None}]
    assert not events(record, "residue")


def test_the_problem_of_the_day(booking_lab: BookingLab, tmp_path: Path) -> None:
    """Another one each day, in turn: its reference passes, its diagnosis is right, and a lost node is UNKNOWN."""
    today = dt.date.today().toordinal()
    status, said = labctl(
        booking_lab, "check", "--pick", "1", "--seed", str(today), "--only", "papers", "--only", "reference",
        "--only", "lost", "--results", str(tmp_path / "results.json"),
    )  # fmt: skip
    (found,) = said["problems"].values()
    asked = {claim: one["answer"] for claim, one in found.items() if one is not None}
    assert asked == {"papers": "yes", "reference": "yes", "lost": "yes"}, said
    assert status == 2, "its other claims were not asked"
