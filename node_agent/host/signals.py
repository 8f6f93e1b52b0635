"""Signals to processes by file descriptor (pidfd_open(2), Linux 5.3), so that a number used again is safe."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError)
_ZOMBIE = ("Z", "X")
_NOBODY = (errno.ESRCH, errno.EINVAL)
"""EINVAL: it was waited for while the kernel made the descriptor (kernel/pid.c, pidfd_prepare)."""


_STARTERS = ("systemd-executor",)
_GIVE_BACK_S = 5.0
_POLL_S = 0.01


class ProcessSignals:
    """The real :class:`node_agent.host.processes.Processes`."""

    def signal(self, pid: int, started: int, number: int) -> bool:
        fd = _open(pid, started)
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def remaining(self, processes: Sequence[tuple[int, int]], within_s: float) -> Sequence[int]:
        deadline = time.monotonic() + within_s
        left = []
        for pid, started in processes:
            fd = _open(pid, started)
            if fd is None:
                continue
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)  # readable when the process ends, waited for or not
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                left.append(pid)
            os.close(fd)
        return left

    def gather(self, folder: str, group: str) -> int:
        Path(group).mkdir(exist_ok=True)
        own = Path("/proc/1/exe").readlink()
        moved = 0
        for pid in _pids(folder):
            with suppress(OSError):  # it has ended, or is a zombie
                program = Path(f"/proc/{pid}/exe").readlink()
                if program != own and program.name not in _STARTERS:
                    moved += _move(pid, group)
        return moved

    def give_back(self, group: str, folder: str) -> None:
        deadline = time.monotonic() + _GIVE_BACK_S
        while Path(group).is_dir():
            for pid in _pids(group):
                _move(pid, folder)
            try:
                Path(group).rmdir()
            except FileNotFoundError:
                return
            except OSError:  # EBUSY: one that has just been made, or is on its way out
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)

    def set_affinity(self, task: int, started: int, cpus: frozenset[int]) -> bool:
        found = _look(task)
        if found is None or found[1] != started:
            return False
        try:
            os.sched_setaffinity(task, cpus)
        except (OSError, ValueError):  # EINVAL: a thread of the kernel that is bound, or no such CPU any more
            return False
        return True


def _pids(group: str) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(group, "cgroup.procs").read_text().split()]
    return []


def _move(pid: int, group: str) -> int:
    with suppress(OSError):  # it has ended
        Path(group, "cgroup.procs").write_text(str(pid))
        return 1
    return 0


def _open(pid: int, started: int) -> int | None:
    """A descriptor of the process that was started then; None where that one is gone.

    The start time is read after opening: whoever has the number then is who the descriptor stands for, or later.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NOBODY:
            return None
        raise
    found = _look(pid)
    if found is not None and found[1] == started and found[0] not in _ZOMBIE:
        return fd
    os.close(fd)
    return None


def _look(pid: int) -> tuple[str, int] | None:
    """State and start time: fields 3 and 22 of /proc/PID/stat (proc_pid_stat(5))."""
    with suppress(*_GONE):
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return words[0], int(words[19])
    return None
