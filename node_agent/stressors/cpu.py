"""A program that uses CPU time and does nothing with it: a noisy neighbour. Run as a helper by an injection.

Its first line of standard input is JSON: `name` to go by, `workers`, `load_percent` of a CPU that each of them
takes where it can have it, `cpus` to run on (none: all), `weight` of its control group `folder` (0: as it is), and
`respawn`: whether a worker that is killed is replaced. It answers each further line with its counters, and ends,
with its workers, with its standard input. Only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

WINDOW_S = 0.1
TURN_S = 0.2
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""include/uapi/linux/prctl.h"""
_NEVER = "-1000"


def take(share: float) -> None:
    """Use this share of a CPU from now on, for ever: in each window by its own CPU clock."""
    while True:
        ends = time.monotonic() + WINDOW_S
        enough = time.thread_time() + share * WINDOW_S
        while time.monotonic() < ends:
            if time.thread_time() >= enough:
                time.sleep(max(0.0, ends - time.monotonic()))
            else:
                _burn()


def _burn() -> None:
    n = 0
    for i in range(2000):
        n = (n * 31 + i) & 0xFFFF


def go_by(name: str) -> None:
    """Be called this in ps and top: the name of the thread, and the command line in our own memory.

    The kernel shows what is in memory from arg_start to arg_end (proc_pid_cmdline(5); fields 48 and 49 of
    proc_pid_stat(5)).
    """
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    with open("/proc/self/stat") as file:  # noqa: PTH123
        words = file.read().rpartition(")")[2].split()
    start, end = int(words[45]), int(words[46])
    if 0 < start < end:
        text = name.encode()[: end - start - 1]
        ctypes.memmove(start, text + b"\0" * (end - start - len(text)), end - start)


def start_worker(wanted: dict[str, Any]) -> int:
    """The pid of a child that uses CPU time until it is killed, or this process ends."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == parent:
        os.close(0)
        take(wanted["load_percent"] / 100)
    os._exit(1)


def set_up(wanted: dict[str, Any]) -> None:
    """Name, CPUs, weight; and not to be chosen by the OOM killer, which is after somebody else."""
    with suppress(PermissionError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(_NEVER)  # root without CAP_SYS_RESOURCE may not
    if wanted["cpus"]:
        os.sched_setaffinity(0, wanted["cpus"])
    if wanted["weight"]:
        with open(wanted["folder"] + "/cpu.weight", "w") as file:  # noqa: PTH123
            file.write(str(wanted["weight"]))
    go_by(wanted["name"])


def ended(workers: Sequence[int]) -> list[int]:
    """Those that somebody has killed. Reaped."""
    found = []
    for pid in workers:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                found.append(pid)
    return found


def main() -> int:
    """Use CPU time until standard input ends."""
    wanted = json.loads(sys.stdin.readline())
    try:
        set_up(wanted)
    except OSError as error:
        print(f"{error.filename or 'cpus'}: {error.strerror}", file=sys.stderr)
        return 1
    workers = [start_worker(wanted) for _ in range(wanted["workers"])]
    replaced = 0
    print("ready", flush=True)
    while True:
        for pid in ended(workers):
            workers.remove(pid)
            if wanted["respawn"]:
                workers.append(start_worker(wanted))
                replaced += 1
        if select.select([0], [], [], TURN_S)[0]:
            if not os.read(0, 4096):
                return 0
            counters = {"workers": len(workers), "replaced": replaced}
            print(json.dumps({"counters": counters}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
