"""The oracle of clocks: what can be known of them from here, and what is made of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from labctl.oracles.clocks import Clocks
from labctl.oracles.on_node import clocks as on_node
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

ORACLE = Clocks()
WELL = {"ahead_at_least_s": -0.1, "ahead_at_most_s": 0.15, "gains": 0.00002}


def judged(**nodes: Any) -> Any:
    after = {"w1": WELL, "w2": WELL, "w3": WELL, **nodes}
    return ORACLE.judge(after, after, WINDOW)


def test_clocks_that_agree() -> None:
    found = judged()
    assert (found.outcome, found.reasons, found.measures) == (Outcome.PASS, (), {"fastest": 0.00002})


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"ahead_at_least_s": 29.8, "ahead_at_most_s": 30.1}, "w2: its clock is 29.80 s ahead or more"),
        ({"ahead_at_least_s": -45.2, "ahead_at_most_s": -45.0}, "w2: its clock is 45.00 s behind or more"),
        ({"gains": 0.05}, "w2: its clock runs +5.00% off"),
        ({"gains": -0.003}, "w2: its clock runs -0.30% off"),
    ],
)
def test_what_it_rejects(seen: dict[str, float], reason: str) -> None:
    found = judged(w2={**WELL, **seen})
    assert found.outcome is Outcome.FAIL and found.reasons[0] == reason


def test_nodes_disagree_though_each_is_near_enough() -> None:
    found = judged(
        w1={**WELL, "ahead_at_least_s": 0.8, "ahead_at_most_s": 0.9},
        w3={**WELL, "ahead_at_least_s": -0.9, "ahead_at_most_s": -0.8},
    )
    assert found.reasons == ("w1: its clock is 1.60 s ahead of w3",)


def test_what_took_long_is_not_known() -> None:
    found = judged(w1={**WELL, "ahead_at_least_s": -2.0, "ahead_at_most_s": 1.5})
    assert (found.outcome, found.reasons) == (Outcome.UNKNOWN, ("w1: its clock could only be read to 3.5 s",))


@pytest.mark.parametrize(("ahead", "outcome"), [(0.0, Outcome.PASS), (30.0, Outcome.FAIL), (-30.0, Outcome.FAIL)])
def test_a_look(ahead: float, outcome: Outcome) -> None:
    raw = json.dumps([[1000.0, 10.0], [1004.0004, 14.0]])
    lab = Told([("*", "END-OF-PROGRAM", raw), ("*", "date", lambda _: f"{time.time() + ahead}\n")])
    seen = ORACLE.look(lab)
    assert seen["w1"]["gains"] == 0.0001
    assert seen["w1"]["ahead_at_least_s"] <= ahead + 0.001 and ahead - 0.001 <= seen["w1"]["ahead_at_most_s"]
    assert ORACLE.judge(seen, seen, WINDOW).outcome is outcome


def test_the_program_reads_two_clocks_of_one_moment() -> None:
    wall, raw = on_node.pair()
    assert abs(wall - time.time()) < 5
    assert abs(raw - time.clock_gettime(time.CLOCK_MONOTONIC_RAW)) < 5
