"""The test bed itself: what it leaves when it is killed, and how long it takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.bed.built import Built
from tests.kubernetes.bed.cluster import clean
from tests.kubernetes.bed.world import wait_for
from tests.kubernetes.conftest import assert_no_traces, traces

ROOT = Path(__file__).parents[2]


def test_a_cluster_whose_owner_is_killed(built: Built) -> None:
    """Its processes die with it; files, link and control groups go when the next one begins."""
    before = traces()
    words = (sys.executable, "-m", "tests.kubernetes.bed.hold", "1")
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready n1\n"
        assert traces()["processes"] > before["processes"]
        os.kill(owner.pid, signal.SIGKILL)
    wait_for("no process of the cluster", lambda: traces()["processes"] <= before["processes"], 30)
    clean()
    assert_no_traces(before)
