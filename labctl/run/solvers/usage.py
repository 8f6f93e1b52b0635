"""What a solver says that it used: `usage.json` in its directory, kept in the record as it is."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

USAGE = "usage.json"
LONGEST = 64 << 10
"""Bytes of it that are kept."""


def keep_usage(directory: Path, artifacts: Path) -> bool:
    """Copy it, and say whether there was one. A link, a pipe or the like is none: a solver may have made anything.

    A record that has no room is met by what matters more.
    """
    with contextlib.suppress(OSError):
        file = os.open(directory / USAGE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return False
            (artifacts / USAGE).write_bytes(os.read(file, LONGEST))
        finally:
            os.close(file)
        return True
    return False
