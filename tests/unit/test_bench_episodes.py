"""The bench of episodes: its arithmetic, and what it takes from the progress of `labctl`."""

from __future__ import annotations

import io

import pytest

from labctl.progress import PlainProgress
from tests.bench.episodes import SNAPSHOT, figures, steps


def test_trials_an_hour() -> None:
    found = figures([200, 100, 300], [10], [340, 340], [10])
    assert found == {
        "trials_per_hour": 18.0,
        "trials_per_hour_without_snapshots": pytest.approx(3600 / 540, abs=0.01),
        "ratio": 2.7,
    }


def test_the_parts_of_a_deployment_are_those_that_labctl_tells() -> None:
    out = io.StringIO()
    progress = PlainProgress(out)
    with progress.task("booting w1 w2") as task:
        task.update("w1 is up")
    with progress.task(SNAPSHOT):
        progress.note("something worth knowing: done")
    assert set(steps(out.getvalue())) == {"booting w1 w2", SNAPSHOT}
    assert steps(f"{SNAPSHOT} ...\n{SNAPSHOT}: done in 12.5 s\n") == {SNAPSHOT: 12.5}
