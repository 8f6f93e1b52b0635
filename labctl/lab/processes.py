"""The lab's background processes: started so that they outlive us, found and ended so that nothing else is hit.

A process belongs to a lab when it is ours, is one of the programs a lab runs, and has the lab's run directory in
its command line. A recorded pid alone means nothing: pids are used again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from labctl.errors import LabError
from labctl.lab.tools import find

_PROGRAMS = ("qemu-system-x86_64", "vde_switch", "setsid")


def spawn(argv: Sequence[str], log: Path) -> None:
    """Start a program in a session of its own, as a child of init, with its output in `log`."""
    program = find(argv[0])
    with log.open("ab") as out:
        subprocess.run(
            ["setsid", "--fork", program or argv[0], *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            check=True,
            timeout=30,
        )


def belongs(pid: int, marker: str) -> bool:
    """Whether this process is alive and has `marker` (a path of the lab) in its command line."""
    try:
        process = psutil.Process(pid)
        argv = process.cmdline()
        ours = process.uids().real == os.getuid()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
    return bool(argv) and ours and Path(argv[0]).name in _PROGRAMS and any(_has(word, marker) for word in argv)


def _has(word: str, marker: str) -> bool:
    """A path as a whole: `…/lab` is not in `…/lab2`."""
    _, found, rest = word.partition(marker)
    return bool(found) and not (rest[:1].isalnum() or rest[:1] in ("-", "_", "."))


def recorded(pidfile: Path, marker: str) -> int | None:
    """The pid in a pidfile, where that process still is the one that wrote it."""
    try:
        pid = int(pidfile.read_text().strip())
    except (FileNotFoundError, ValueError):
        return None
    return pid if belongs(pid, marker) else None


def sweep(marker: str) -> tuple[int, ...]:
    """All processes of a lab, also those that had no time to write a pidfile."""
    return tuple(pid for pid in psutil.pids() if pid != os.getpid() and belongs(pid, marker))


def end(pids: Iterable[int], marker: str, patience: float = 0.0) -> None:
    """End processes of the lab: wait `patience` seconds for them to go, then kill. LabError where one stays."""
    found = [psutil.Process(pid) for pid in pids if belongs(pid, marker)]
    _, alive = psutil.wait_procs(found, timeout=patience)
    for process in alive:
        if belongs(process.pid, marker):
            process.kill()
    _, alive = psutil.wait_procs(alive, timeout=20)
    if alive:
        raise LabError(f"process {alive[0].pid} does not end", "it hangs in the kernel: see /proc/PID/stack")
