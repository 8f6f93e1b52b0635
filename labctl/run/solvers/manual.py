"""A person: a shell in the solver's directory, on the terminal of the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from labctl.errors import UsageError
from labctl.run.solvers.base import DeskSolver
from labctl.run.solvers.command import GRACE_S, end_marked, environment


class ManualSolver(DeskSolver):
    """Has the terminal until the shell ends, the repair is declared or the time is over."""

    _process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        if not sys.stdin.isatty():
            raise UsageError("--solver manual: there is no terminal", "run it in one, or give a command")
        path = self.directory.path
        print(f"You are in {path}; begin with: less STATEMENT.md", file=sys.stderr, flush=True)
        shell = os.environ.get("SHELL") or "/bin/sh"
        self._process = subprocess.Popen(
            (shell,), cwd=path, env=environment(os.environ, path.name), process_group=0
        )
        with _unstopped():
            os.tcsetpgrp(sys.stdin.fileno(), self._process.pid)

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGHUP)
        end_marked(self.directory.path.name, GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        with _unstopped(), contextlib.suppress(OSError):
            os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())


@contextlib.contextmanager
def _unstopped() -> Iterator[None]:
    """A process in the background that takes the terminal is stopped by the kernel unless it ignores this."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTTOU, before)
