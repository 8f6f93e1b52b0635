"""From measurements to one result: percentiles, ratios with their intervals, what was to be reached. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MOST_P99_MS = 100.0
LEAST_RATIO = 0.97
DRAWS = 4000


def percentile(values: Sequence[float], per_cent: float) -> float:
    """The smallest value that is not below so many per cent of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * per_cent / 100) - 1)]


def times(seconds: Sequence[float]) -> dict[str, Any]:
    """Milliseconds: median, 99th percentile (of fewer than 100 runs: the worst), extremes, how many."""
    ms = [1000 * s for s in seconds]
    return {"n": len(ms), "p50_ms": round(statistics.median(ms), 1), "p99_ms": round(percentile(ms, 99), 1),
            "min_ms": round(min(ms), 1), "max_ms": round(max(ms), 1)}  # fmt: skip


def interval(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, by the bootstrap."""
    chance = random.Random(seed)
    drawn = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    return drawn[DRAWS * 25 // 1000], drawn[DRAWS * 975 // 1000]


def ratios(lines: Sequence[Mapping[str, Any]], unit: str) -> list[dict[str, Any]]:
    """Each way against the bare one of its kind, pairs of one round: the share of the bare throughput.

    `unit` is `mib_s`, or `instructions`, where fewer are better.
    """
    found = []
    measured = [line for line in lines if unit in line]
    for job in dict.fromkeys(line["job"] for line in measured):
        by_arm: dict[str, dict[int, float]] = {}
        for line in measured:
            if line["job"] == job:
                by_arm.setdefault(line["arm"], {})[line["round"]] = float(line[unit])
        for arm, values in sorted(by_arm.items()):
            bare = by_arm["bare disk" if arm.endswith("disk") else "bare"]
            shares = [bare[n] / values[n] if unit == "instructions" else values[n] / bare[n] for n in values]
            low, high = interval(shares)
            found.append(
                {"job": job, "arm": arm, "n": len(shares), unit: round(statistics.median(values.values()), 1),
                 "share": round(statistics.median(shares), 4), "low": round(low, 4), "high": round(high, 4)}
            )  # fmt: skip
    return found


def share(rows: Sequence[Mapping[str, Any]], job: str, arm: str) -> Mapping[str, Any]:
    """One row. Raises LookupError where that was not measured."""
    for row in rows:
        if (row["job"], row["arm"]) == (job, arm):
            return row
    raise LookupError(f"nothing measured for {job}, {arm}")


def reach(result: Mapping[str, Any]) -> dict[str, Any]:
    """What was to be reached, with what was measured."""
    checks: dict[str, Any] = {}
    for fault, found in result["latency"].items():
        load = found["load"]
        for verb in ("inject", "recover"):
            p99 = load[verb]["p99_ms"]
            name = f"{fault}: {verb} under load at most {MOST_P99_MS:.0f} ms"
            checks[name] = {"measured": p99, "met": p99 <= MOST_P99_MS}
        name = f"{fault}: fio on another file meets no error"
        checks[name] = {"measured": load["errors"], "met": load["errors"] == 0}
    reader = result["reader"]
    checks["who reads the file meets errors in the bad places only"] = {
        "measured": reader, "met": reader["inside"] > 0 and reader["outside"] == 0
    }  # fmt: skip
    for kind in ("timed", "counted"):
        for row in result[kind]:
            if row["arm"].startswith("linear"):
                checks[f"{row['arm']}, {kind}, {row['job']}: at least {LEAST_RATIO:.0%} of the bare disk"] = {
                    "measured": [row["low"], row["share"], row["high"]], "met": row["share"] >= LEAST_RATIO
                }  # fmt: skip
            elif row["arm"] == "fuse":
                linear = share(result[kind], row["job"], "linear")
                checks[f"linear above FUSE, {kind}, {row['job']}"] = {
                    "measured": [linear["share"], row["share"]], "met": linear["low"] > row["high"]
                }  # fmt: skip
    return checks
