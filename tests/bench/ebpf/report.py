"""From what guests said to one result: ratios to nothing loaded, times of updates, what was to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MOST_BYSTANDER = 1.10
MOST_UPDATE_MS = 5.0
SAME = 0.002
"""Ratios of one guest that differ by less are the same: a timer tick more or less."""


def run_of(lines: Sequence[Mapping[str, Any]], name: str, unit: str) -> dict[str, Any]:
    """One guest's measurements. The base of each call's ratios is the least of what nothing loaded cost."""
    measured = [line for line in lines if "call" in line]
    base = {
        call: min(line["ns"] for line in measured if line["call"] == call and line["mechanism"] == "nothing")
        for call in dict.fromkeys(line["call"] for line in measured)
    }
    results = [
        {key: line[key] for key in ("call", "mechanism", "situation", "rules")}
        | {"cost": line["ns"], "ratio": round(line["ns"] / base[line["call"]], 3)}
        for line in measured
    ]
    timings = [_timing(line) for line in lines if line.get("ns") and "timing" in line]
    kernel = next((line["kernel"] for line in lines if "kernel" in line), "")
    return {"name": name, "kernel": kernel, "unit": unit, "results": results, "timings": timings}


def _timing(line: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds of the guest's clock, a million instructions each, waiting included: median and worst."""
    times = [ns / 1e6 for ns in line["ns"]]
    named = {key: line[key] for key in ("timing", "kind", "rules", "programs") if key in line}
    return {**named, "count": len(times), "median_ms": round(statistics.median(times), 3),
            "max_ms": round(max(times), 3)}  # fmt: skip


def ratio(run: Mapping[str, Any], call: str, mechanism: str, situation: str, rules: int) -> float:
    """One measurement of a run. Raises LookupError where it was not made."""
    wanted = (call, mechanism, situation, rules)
    for one in run["results"]:
        if (one["call"], one["mechanism"], one["situation"], one["rules"]) == wanted:
            return float(one["ratio"])
    raise LookupError(f"{run['name']}: nothing measured for {wanted}")


def reach(run: Mapping[str, Any]) -> dict[str, Any]:
    """What was to be reached, with what was measured in one run.

    A seccomp filter is paid for by the processes that have it; all others hit everybody who makes the call.
    """
    bystander = ratio(run, "pread", "groundfault", "other unit", 1000)
    first = ratio(run, "pread", "groundfault", "other unit", 1)
    others = {
        f"{mechanism}, {situation}": ratio(run, "pread", mechanism, situation, 1)
        for mechanism, situation in (
            ("kprobe", "other process"), ("fmod_ret", "other process"), ("seccomp", "other call"),
            ("strace", "other call"),
        )
    }  # fmt: skip
    updates = [t for t in run["timings"] if t["timing"] == "add" and t["kind"] == "unit"]
    update = max(t["median_ms"] for t in updates)
    loaded = ratio(run, "pread", "groundfault", "loaded", 0)
    elsewhere = ratio(run, "pread", "groundfault", "rule for another hook", 1)
    return {
        "no rule for a hook costs nothing": {"measured": [loaded, elsewhere],
                                             "met": max(loaded, elsewhere) <= 1 + SAME},
        "1,000 rules for others: at most 10 % on pread": {"measured": bystander,
                                                          "met": bystander <= MOST_BYSTANDER},
        "independent of the number of rules": {"measured": [first, bystander],
                                               "met": abs(bystander - first) <= SAME},
        **{
            f"below {name}": {"measured": [bystander, other], "met": bystander < other}
            for name, other in others.items()
        },
        "rule update at most 5 ms at one instruction a nanosecond": {"measured": update,
                                                                     "met": update <= MOST_UPDATE_MS},
    }  # fmt: skip


def whole(machine: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of one benchmark: what was to be reached is looked up in the first run."""
    return {"machine": machine, "reach": reach(runs[0]), "runs": runs}
