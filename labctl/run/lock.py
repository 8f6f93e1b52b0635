"""One run at a time on a lab."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from labctl.errors import LabError


@contextlib.contextmanager
def run_lock(path: Path, lab: str, what: str) -> Iterator[None]:
    """Hold the lab for a run. Raises :class:`LabError` at once where another one has it, and says which.

    The kernel drops the lock with the process, so a killed run never blocks anyone.
    """
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "another run"
            raise LabError(f"lab {lab} is taken by {holder}", "wait for its end, or take another --lab") from None
        handle.truncate(0)
        handle.write(f"{what}, pid {os.getpid()}\n")
        handle.flush()
        try:
            yield
        finally:
            handle.truncate(0)
