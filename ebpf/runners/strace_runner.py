"""Runs strace on processes and counts what it does. A script: `strace_runner.py`, settings on standard input.

Settings: `argv`, the command; `pids`, the processes that must be attached before it is ready; `signal`, the one
that it sends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from ebpf.runners.protocol import RefusedError, Report, serve
from ebpf.strace import Counting
from node_agent.launcher import die_with_parent

_ATTACH_S = 20.0


class _Tracer:
    """strace as a child, its lines counted as they come: it waits while nobody reads them, and its target too."""

    def __init__(self, argv: list[str], pids: set[int], signal_name: str) -> None:
        self._counting, self._pids = Counting(signal_name), pids
        self._attached = threading.Event()
        # SIGTERM makes strace let go of its tracees in good order. It gets one when this process is killed, too.
        self._child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            preexec_fn=_end_with(os.getpid()),  # noqa: PLW1509  (this process has no other thread yet)
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._counting.take(line.decode(errors="replace").rstrip("\n"))
            if self._pids <= self._counting.attached:
                self._attached.set()
        self._child.wait()
        self._attached.set()

    def wait(self) -> None:
        """Until all processes are attached. Raises RefusedError where strace cannot."""
        in_time = self._attached.wait(_ATTACH_S)
        if not self._pids <= self._counting.attached:
            self._child.terminate()
            why = "; ".join(self._counting.complaints) or ("it ended" if in_time else "it does not attach in time")
            raise RefusedError(f"strace: {why}")

    def report(self) -> Report:
        """Counters; `attached` is 0 once strace has ended, as it does with its last tracee."""
        running = self._child.poll() is None
        notes = [] if running else ["strace has ended: no process of its target is left"]
        return {"counters": self._counting.counters(), "attached": int(running), "notes": notes}


def _end_with(parent: int) -> Any:
    def ask() -> None:
        if not die_with_parent(signal.SIGTERM, parent):
            os._exit(127)

    return ask


def _start(given: dict[str, Any]) -> Any:
    try:
        tracer = _Tracer(given["argv"], set(given["pids"]), given.get("signal", ""))
    except FileNotFoundError:
        raise RefusedError("this node has no strace: apt-get install strace") from None
    tracer.wait()
    return tracer.report


if __name__ == "__main__":
    sys.exit(serve(_start))
