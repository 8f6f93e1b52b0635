"""A process that lets nothing else run on any CPU for a while. Run as a script by an injection.

Its first line of standard input is JSON: `after_s` and `hang_s`. The line `go` starts the time; any line is
answered by one with the counters. One child for each CPU then runs there and never sleeps, at the highest priority
that user space can have (SCHED_FIFO 99, sched(7)), until the raw clock says that it is over. How long that really
kept others from running shows in this process, which has no priority. Only the standard library.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

_TURN_S = 0.1


def main() -> int:
    """Wait, hang, and tell how long."""
    wanted = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    due, children, longest, last = 0.0, [], 0.0, _now()
    while True:
        spoken = bool(select.select([sys.stdin], [], [], _TURN_S)[0])
        now = _now()
        last, longest = now, max(longest, now - last)
        if spoken:
            line = sys.stdin.readline()
            if not line:
                return 0
            if line.strip() == "go" and not due:
                due = now + wanted["after_s"]
                end = due + wanted["hang_s"]
                children = [_child(cpu, due, end) for cpu in sorted(os.sched_getaffinity(0))]
                last = _now()
            hung = longest if children and longest > wanted["hang_s"] / 2 else 0.0
            left = round(max(0.0, due - now) * 1000) if due else -1
            counters = {"left_ms": left, "hung_ms": round(hung * 1000), "hits": int(hung > 0)}
            print(json.dumps({"counters": counters}), flush=True)


def _child(cpu: int, due: float, end: float) -> int:
    """A child that takes a CPU for itself from `due` to `end`."""
    pid = os.fork()
    if pid:
        return pid
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    time.sleep(max(0.0, due - _now()))
    while _now() < end:
        pass
    os._exit(0)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


if __name__ == "__main__":
    sys.exit(main())
