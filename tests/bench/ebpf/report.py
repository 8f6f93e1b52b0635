"""From what guests said to one result: ratios to nothing loaded, times of updates, what was to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MOST_BYSTANDER = 1.10
MOST_UPDATE_MS = 5.0


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
    """Milliseconds of the guest's clock: median and worst of all."""
    times = [ns / 1e6 for ns in line["ns"]]
    named = {key: line[key] for key in ("timing", "kind", "rules", "programs", "python") if key in line}
    return {**named, "count": len(times), "median_ms": round(statistics.median(times), 3),
            "max_ms": round(max(times), 3)}  # fmt: skip


def ratio(run: Mapping[str, Any], call: str, mechanism: str, situation: str, rules: int) -> float:
    """One measurement of a run. Raises LookupError where it was not made."""
    wanted = (call, mechanism, situation, rules)
    for one in run["results"]:
        if (one["call"], one["mechanism"], one["situation"], one["rules"]) == wanted:
            return float(one["ratio"])
    raise LookupError(f"{run['name']}: nothing measured for {wanted}")


def _unemulated(run: dict[str, Any], python_s: float) -> None:
    """Add what the times of a guest would be on this machine without emulation, by the work that both did."""
    emulated = next(t["median_ms"] for t in run["timings"] if t["timing"] == "python")
    factor = emulated / 1000 / python_s
    run["emulation_factor"] = round(factor, 1)
    for timing in run["timings"]:
        timing["unemulated_median_ms"] = round(timing["median_ms"] / factor, 3)


def reach(run: Mapping[str, Any], timed: Mapping[str, Any]) -> dict[str, Any]:
    """What was to be reached, with what was measured: `run` counts instructions, `timed` has wall time."""
    bystander = ratio(run, "pread", "groundfault", "other unit", 1000)
    first = ratio(run, "pread", "groundfault", "other unit", 1)
    others = {
        f"{mechanism}, {situation}": ratio(run, "pread", mechanism, situation, 1)
        for mechanism, situation in (
            ("kprobe", "other process"), ("fmod_ret", "other process"), ("seccomp", "other call"),
            ("strace", "other call"),
        )
    }  # fmt: skip
    updates = [t for t in timed["timings"] if t["timing"] == "add" and t["kind"] == "unit"]
    update = max(t["unemulated_median_ms"] for t in updates)
    loaded = ratio(run, "pread", "groundfault", "loaded", 0)
    elsewhere = ratio(run, "pread", "groundfault", "rule for another hook", 1)
    return {
        "no rule for a hook costs nothing": {"measured": [loaded, elsewhere],
                                             "met": max(loaded, elsewhere) <= 1.002},
        "1,000 rules for others: at most 10 % on pread": {"measured": bystander,
                                                          "met": bystander <= MOST_BYSTANDER},
        "independent of the number of rules": {"measured": [first, bystander],
                                               "met": abs(bystander - first) <= 0.005},
        "below every other mechanism on pread": {"measured": {"groundfault": bystander, **others},
                                                 "met": all(bystander < other for other in others.values())},
        "rule update at most 5 ms, unemulated": {"measured": update, "met": update <= MOST_UPDATE_MS},
    }  # fmt: skip


def whole(machine: dict[str, Any], runs: list[dict[str, Any]], python_s: float) -> dict[str, Any]:
    """The result of one benchmark: the first run counts all mechanisms, the third has wall time."""
    for run in runs:
        if run["timings"]:
            _unemulated(run, python_s)
    return {
        "machine": machine,
        "python_loop_s": round(python_s, 4),
        "reach": reach(runs[0], runs[2]),
        "runs": runs,
    }
