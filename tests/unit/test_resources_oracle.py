"""The oracle of resources: what its program says of this machine, and bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from labctl.oracles.nodes import python
from labctl.oracles.on_node import resources as on_node
from labctl.oracles.resources import BOUNDS, Resources
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Here

ORACLE = Resources(units=(("w1", "nginx.service"),))
NODE: dict[str, Any] = {
    "memory_available_mib": 310.0, "memory_used": 0.55, "swap_used": 0.0, "disk_used /srv/data": 0.2,
    "inodes_used /srv/data": 0.02, "tasks_used nginx.service": 0.05, "descriptors_used nginx.service": 0.01,
    "memory_used nginx.service": 0.2,
    "files_used": 0.0, "pids_used": 0.005, "conntrack_used": 0.0, "ports_used": 0.01,
    "cpus": 1, "stolen": 0.0, "idle": 0.4, "stalled_cpu": 0.5, "stalled_memory": 0.0, "stalled_io": 0.05,
}  # fmt: skip
HEALTHY = dict.fromkeys(("w1", "w2", "w3"), NODE)


def judged(node: str, **bounds: float) -> Any:
    def of(**changed: float) -> Any:
        after = json.loads(json.dumps(HEALTHY))
        after[node] |= changed
        return ORACLE.model_copy(update={"bounds": bounds}).judge(HEALTHY, after, WINDOW)

    return of


def test_nodes_that_have_enough() -> None:
    found = judged("w1")()
    assert (found.outcome, found.reasons) == (Outcome.PASS, ()) and found.measures["w2_idle"] == 0.4


@pytest.mark.parametrize("what", [name for name in NODE if name.split()[0] in BOUNDS])
def test_each_bound(what: str) -> None:
    most = BOUNDS[what.split(maxsplit=1)[0]]
    assert judged("w2")(**{what: most}).outcome is Outcome.PASS
    found = judged("w2")(**{what: 0.999})
    assert found.outcome is Outcome.FAIL and found.reasons[0].startswith(f"w2: {what} is 100%, allowed {most:.0%}")


def test_bounds_of_a_problem() -> None:
    assert judged("w2", **{"disk_used /srv/data": 0.97})(**{"disk_used /srv/data": 0.95}).outcome is Outcome.PASS
    assert judged("w2", disk_used=0.1)().outcome is Outcome.FAIL


def test_a_processor_that_is_gone() -> None:
    assert judged("w3")(cpus=0).reasons == ("w3: 0 processors, there were 1",)


def test_the_program_on_this_machine() -> None:
    given = {"paths": ["/", "/nowhere"], "units": ["no-such.service"], "sample_s": 0.2}
    said = python(Here(), "here", "resources", given)
    assert 0 < said["memory_used"] < 1 and 0 < said["disk_used /"] <= 1 and said["cpus"] >= 1
    assert "disk_used /nowhere" not in said and not any("no-such" in key for key in said)


def test_shares() -> None:
    assert (on_node.share("5", "10"), on_node.share("5", "max"), on_node.share("", "10")) == (0.5, 0, 0)
    assert on_node.share("5", "0") == 0


def test_programs_say_json_and_need_nothing_installed() -> None:
    argv = [sys.executable, "-ISB", on_node.__file__, json.dumps({"paths": [], "units": [], "sample_s": 0})]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout)["cpus"] >= 1
