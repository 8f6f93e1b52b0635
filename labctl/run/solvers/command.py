"""A solver that is a command: any program, in its directory, in a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

import psutil

from labctl.errors import UsageError
from labctl.run.solvers.base import DeskSolver, Setting

GRACE_S = 5.0
"""How long what it started may take to end by itself once it is asked."""

_MARK = "LAB_SOLVER"
_PRIVATE = ("GROUNDFAULT_", "XDG_STATE_HOME", "XDG_CACHE_HOME")
_POLL_S = 0.05


class CommandSolver(DeskSolver):
    """Runs `argv`. Whatever it started is known by a mark in its environment, also what left its process group."""

    def __init__(self, setting: Setting, argv: Sequence[str]) -> None:
        super().__init__(setting)
        self._argv = tuple(argv)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def begin(self) -> None:
        mark = self.directory.path.name
        try:
            self._process = subprocess.Popen(
                self._argv, cwd=self.directory.path, env=environment(os.environ, mark), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(
                f"--solver: {self._argv[0]} cannot be run: {error.strerror}", "give a path, or what is in PATH"
            ) from None
        self._reader = threading.Thread(target=self._copy, args=(self._process,), name="solver", daemon=True)
        self._reader.start()

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        end_marked(self.directory.path.name, GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(GRACE_S)
            self.setting.note("solver", status=status)
        if self._reader:
            self._reader.join(GRACE_S)
        self._process = None

    def _copy(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        while chunk := process.stdout.read1(65536):  # type: ignore[attr-defined]
            self.log.write(chunk)


def environment(mine: Mapping[str, str], mark: str) -> dict[str, str]:
    """The environment of a solver: this one, without what leads to labs, and marked."""
    kept = {name: value for name, value in mine.items() if not name.startswith(_PRIVATE)}
    return {**kept, _MARK: mark}


def end_marked(mark: str, grace_s: float) -> None:
    """End every process with this mark: asked first, killed after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    while found := marked(mark):
        for one in found:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() > deadline:
                    one.kill()
                else:
                    one.terminate()
        if time.monotonic() > deadline + grace_s:
            return
        time.sleep(_POLL_S)


def marked(mark: str) -> list[psutil.Process]:
    """The processes of this user with this mark; those that have ended and were not waited for are none."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(_MARK) == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found
