"""Passwords that are kept elsewhere: read from a file or an environment variable, never stored, never shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from labctl.errors import UsageError

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The name of an environment variable."""


def from_environment(variable: str, what: str, remedy: str) -> str:
    """What a variable holds. Raises :class:`UsageError` where that is nothing; `what` is the inventory's key."""
    found = os.environ.get(variable, "")
    if not found:
        raise UsageError(f"{what}: {variable} is not set", remedy)
    return found


def from_file(path: Path, what: str) -> str:
    """The first line of a file that nobody else may read. Raises :class:`UsageError`."""
    try:
        with path.open("rb") as handle:
            mode = os.fstat(handle.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise UsageError(f"{what}: others can read {path}", f"chmod 600 {path}")
            text = handle.read(4096).decode("utf8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{what}: {path} cannot be read: {why}", "a file with one line") from None
    lines = text.splitlines()
    if not lines or not lines[0]:
        raise UsageError(f"{what}: {path} is empty", "a file with one line, the password")
    return lines[0]
