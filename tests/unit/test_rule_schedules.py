"""Which calls a schedule picks: the very function of the programs, compiled for this machine."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ebpf.loader import abi
from node_agent.rules import Hook, Rule, Scope
from node_agent.schedule import parse_schedule

EBPF = Path(abi.__file__).resolve().parents[1]
SOURCE = """
#include "include/rules.h"
#include "include/schedule.h"
int picks(struct rule *rule, __u64 n, __u64 now) { return scheduled(rule, n, now); }
"""
Picks = Callable[[str, int, int, int], bool]


@pytest.fixture(scope="module")
def picks(tmp_path_factory: pytest.TempPathFactory) -> Picks:
    """picks(schedule, seed, number of the call, nanoseconds since it was armed)."""
    work = tmp_path_factory.mktemp("schedule")
    (work / "s.c").write_text(SOURCE)
    argv = ["clang", "-shared", "-fPIC", "-O2", "-I", str(EBPF), "-o", str(work / "s.so"), str(work / "s.c")]
    subprocess.run(argv, check=True, capture_output=True)
    library = ctypes.CDLL(str(work / "s.so"))
    library.picks.argtypes = [ctypes.POINTER(abi.RuleEntry), ctypes.c_uint64, ctypes.c_uint64]

    def ask(schedule: str, seed: int, number: int, after_ns: int) -> bool:
        scope, hook = Scope(kind="cgroup", name="x", cgroup="/x"), Hook(name="file_open", flavour="lsm")
        when = parse_schedule(schedule)
        rule = Rule(operations=(1,), hooks=(hook,), scope=scope, schedule=when, seed=seed, errno=5)
        armed = 10**12
        return bool(library.picks(ctypes.byref(abi.encode(rule, armed)), number, armed + after_ns))

    return ask


def _pattern(picks: Picks, schedule: str, count: int = 12, seed: int = 0) -> str:
    return "".join("E" if picks(schedule, seed, n, 0) else "." for n in range(count))


@pytest.mark.parametrize(
    ("schedule", "pattern"),
    [
        ("always", "EEEEEEEEEEEE"),
        ("every:1", "EEEEEEEEEEEE"),
        ("every:4", "...E...E...E"),
        ("after:9", ".........EEE"),
        ("first:2", "EE.........."),
        ("ratio:1/3", "..E..E..E..E"),
        ("ratio:3/4", ".EEE.EEE.EEE"),
        ("ratio:5/5", "EEEEEEEEEEEE"),
        ("probability:1", "EEEEEEEEEEEE"),
    ],
)
def test_these_calls(picks: Picks, schedule: str, pattern: str) -> None:
    assert _pattern(picks, schedule) == pattern


@pytest.mark.parametrize(("a", "b"), [(1, 7), (2, 7), (6, 7), (7, 7), (13, 100), (999, 1000)])
def test_a_ratio_is_exact_in_every_window_that_begins_with_a_multiple(picks: Picks, a: int, b: int) -> None:
    pattern = _pattern(picks, f"ratio:{a}/{b}", 3 * b)
    assert [pattern[i * b : (i + 1) * b].count("E") for i in range(3)] == [a] * 3


def test_a_ratio_stays_exact_after_very_many_calls(picks: Picks) -> None:
    assert sum(picks("ratio:2/7", 0, 7 * 10**15 + n, 0) for n in range(7)) == 2


def test_a_seed_decides_probability(picks: Picks) -> None:
    one, again, other = (_pattern(picks, "probability:0.3", 5000, seed) for seed in (7, 7, 8))
    assert one == again != other
    for drawn in (one, other):
        assert 1370 <= drawn.count("E") <= 1630, "1500, give or take four standard deviations"


@pytest.mark.parametrize(("after_s", "hit"), [(0, True), (1.9, True), (2.1, False), (6.9, False), (7.1, True)])
def test_bursts_follow_the_clock(picks: Picks, after_s: float, hit: bool) -> None:
    assert picks("burst:2/5", 0, 1, int(after_s * 1e9)) == hit
