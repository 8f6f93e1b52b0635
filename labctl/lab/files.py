"""Files that survive a crash half way through, and locks that do not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from labctl.errors import LabError


def write_atomic(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace `path` so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, what: str, timeout: float, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock. The kernel drops it with the process, so a killed holder never blocks anyone.

    `waiting` is told once when someone else holds it; after `timeout` seconds it is a LabError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        deadline = time.monotonic() + timeout
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    told = True
                    waiting(f"waiting for another labctl that works on {what}")
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another labctl has been working on {what} for {timeout:.0f} s",
                        f"see who holds it: fuser -v {path}",
                    ) from None
                time.sleep(0.1)
        yield


@contextlib.contextmanager
def lab_locked(directory: Path, timeout: float, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lab that is kept in `directory`, which is made where it is not there; see :func:`locked`."""
    with locked(directory.parent / f".{directory.name}.lock", f"lab {directory.name}", timeout, waiting):
        directory.mkdir(mode=0o700, exist_ok=True)
        yield


def tail(path: Path, lines: int = 15) -> str:
    """The end of a log, for an error message; empty where there is none. Control characters are dropped."""
    try:
        with path.open("rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - 8192))
            text = handle.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    kept = ["".join(c for c in line if c.isprintable()) for line in text.splitlines()]
    return "\n".join([line for line in kept if line.strip()][-lines:])


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same file as `source` where the file system can, and a copy where it cannot."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def prune(entries: Iterable[Path], keep: int) -> None:
    """Delete all but the `keep` cache entries that were used last."""
    entries = sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[keep:]:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A directory for half-done work beside cache entries; remains of a killed builder are removed first.

    To be used under the lock of `directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob(".partial-*"):
        shutil.rmtree(stale)
    work = Path(tempfile.mkdtemp(prefix=".partial-", dir=directory))
    try:
        yield work
    finally:
        shutil.rmtree(work)
