"""Reads the wall clock and the raw hardware clock together, twice."""

from __future__ import annotations

import json
import sys
import time


def pair() -> tuple[float, float]:
    """Wall clock and raw clock of one moment: of several tries, the one that was least interrupted."""
    best = (float("inf"), 0.0, 0.0)
    for _ in range(20):
        first = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        wall = time.time()
        last = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        best = min(best, (last - first, wall, (first + last) / 2))
    return best[1], best[2]


def main() -> None:
    given = json.loads(sys.argv[1])
    first = pair()
    time.sleep(given["apart_s"])
    second = pair()
    print(json.dumps([first, second]))


if __name__ == "__main__":
    main()
