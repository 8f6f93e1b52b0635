"""A process that ends the machine some seconds after it is told to. Run as a script by an injection.

Its first line of standard input is JSON: `how` ("panic", "reset" or "reboot") and `after_s`. The line `go` starts
the time; any line is answered by one with the counters. It ends with its standard input, and then nothing happens:
the end of the agent calls it off. Only the standard library.

Source: Documentation/admin-guide/sysrq.rst; /proc/sysrq-trigger obeys root whatever kernel.sysrq allows.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

_TRIGGER = "/proc/sysrq-trigger"
_KEYS = {"panic": b"c", "reset": b"b"}
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def main() -> int:
    """Wait, and end the machine."""
    wanted = json.loads(sys.stdin.readline())
    trigger = os.open(_TRIGGER, os.O_WRONLY | os.O_CLOEXEC) if wanted["how"] in _KEYS else -1
    print("ready", flush=True)
    due, fired = 0.0, False
    while True:
        rest = max(0.0, due - _now()) if due and not fired else None
        if select.select([sys.stdin], [], [], rest)[0]:
            line = sys.stdin.readline()
            if not line:
                return 0
            due = due or (_now() + wanted["after_s"] if line.strip() == "go" else 0.0)
            left = round(max(0.0, due - _now()) * 1000) if due else -1
            print(json.dumps({"counters": {"left_ms": left, "hits": int(fired)}}), flush=True)
        elif not fired:
            fired = True
            if trigger >= 0:
                os.write(trigger, _KEYS[wanted["how"]])
            else:
                os.posix_spawnp("systemctl", ["systemctl", "reboot"], _ENVIRONMENT)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


if __name__ == "__main__":
    sys.exit(main())
