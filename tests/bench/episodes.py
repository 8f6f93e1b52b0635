"""`make bench-episodes`: trials per hour on this machine, beside what they would be without snapshots. JSON.

A trial is what a benchmark run is made of: `labctl run PROBLEM --solver reference`, which takes the lab back to
its snapshot first. Without snapshots, each trial would deploy the workload anew and tear it down: `labctl up
--workload` of a lab that is not there, with its image in the cache, and `labctl down --destroy`. All are typed as
users type them, in a lab of this bench's own, and timed by wall clock. What taking the snapshot costs is told by
`labctl up` itself, and taken off the deployment: who has no snapshots takes none.

Trials that do not pass are no measure of trials: the bench ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl.run.record import read_record
from tests.bench.lab import machine, summary

LAB = "bench-episodes"
PROBLEM = "pg_reads_fail_intermittently"
SNAPSHOT = "taking the golden snapshot"
_DONE = re.compile(r"^(?P<title>\S.*): done in (?P<seconds>[\d.]+) s$", re.M)


def command(*argv: str, allowed: Sequence[int] = (0,)) -> tuple[float, str]:
    """Type a labctl command: its time in seconds, and its progress, which is shown as well."""
    began = time.monotonic()
    done = subprocess.run(
        (sys.executable, "-m", "labctl", "--lab", LAB, *argv), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    took = time.monotonic() - began
    sys.stderr.write(done.stderr)
    if done.returncode not in allowed:
        raise SystemExit(f"labctl {' '.join(argv)} ended with {done.returncode}")
    return took, done.stderr


def steps(progress: str) -> dict[str, float]:
    """What `labctl` says its parts took, in seconds."""
    return {found["title"]: float(found["seconds"]) for found in _DONE.finditer(progress)}


def deployment(workload: str) -> tuple[dict[str, Any], float]:
    """Up and away again: times of one deployment, and of one teardown."""
    up_s, progress = command("up", "--workload", workload)
    down_s, _ = command("down", "--destroy")
    parts = steps(progress)
    without = round(up_s - parts.get(SNAPSHOT, 0.0), 3)
    return {"up_s": round(up_s, 3), "without_snapshot_s": without, "steps": parts}, down_s


def trials(problem: str, count: int, records: Path) -> tuple[list[float], list[str]]:
    """Times of so many trials, and what became of each."""
    times, ends = [], []
    for number in range(count):
        record = records / f"trial-{number}"
        took, _ = command("run", problem, "--solver", "reference", "--seed", str(number), "--record", str(record),
                          allowed=(0, 1, 2))  # fmt: skip
        verdict = read_record(record).verdict
        times.append(took)
        ends.append("no verdict" if verdict is None else verdict.outcome.value)
    return times, ends


def figures(
    trial_s: Sequence[float], reset_s: Sequence[float], deploy_s: Sequence[float], teardown_s: Sequence[float]
) -> Mapping[str, float]:
    """Trials an hour with snapshots, and without: there the reset of a trial is a deployment and a teardown."""
    trial, reset = _median(trial_s), _median(reset_s)
    anew = trial - reset + _median(deploy_s) + _median(teardown_s)
    return {
        "trials_per_hour": round(3600 / trial, 2),
        "trials_per_hour_without_snapshots": round(3600 / anew, 2),
        "ratio": round(anew / trial, 2),
    }


def _median(values: Sequence[float]) -> float:
    found: float = summary(values)["median_s"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default=PROBLEM)
    parser.add_argument("--workload", default="booking")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--deployments", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as scratch:
        os.environ["XDG_STATE_HOME"] = scratch
        try:
            first_s, _ = command("up", "--workload", options.workload)
            reset_s = [command("reset")[0] for _ in range(options.trials)]
            trial_s, ends = trials(options.problem, options.trials, Path(scratch) / "records")
            command("down", "--destroy")
            made = [deployment(options.workload) for _ in range(options.deployments)]
        finally:
            command("down", "--destroy", allowed=range(256))
    deploy_s, teardown_s = [found["without_snapshot_s"] for found, _ in made], [down for _, down in made]
    result = {
        "machine": machine(), "problem": options.problem, "ends": ends, "first_up_s": round(first_s, 1),
        "reset": summary(reset_s), "trial": summary(trial_s), "deployments": [found for found, _ in made],
        "teardown": summary(teardown_s), **figures(trial_s, reset_s, deploy_s, teardown_s),
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    return 0 if set(ends) == {"pass"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
