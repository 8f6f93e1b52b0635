"""Typing what a user types: `labctl` in a process of its own, against the lab under test."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

LAB = "vmtests"
PATIENCE_S = 300.0


def labctl(*argv: str, status: int | None = 0, lab: str = LAB) -> subprocess.CompletedProcess[str]:
    """Run a command line; its exit status must be `status` (None: any)."""
    done = subprocess.run(
        (sys.executable, "-m", "labctl", "--lab", lab, *argv), capture_output=True, text=True, timeout=PATIENCE_S
    )
    if status is not None and done.returncode != status:
        raise AssertionError(
            f"labctl {' '.join(argv)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def labctl_json(*argv: str, status: int | None = 0, lab: str = LAB) -> Any:
    """The same with --json, parsed."""
    return json.loads(labctl(*argv, "--json", status=status, lab=lab).stdout)


def until(what: str, condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.2)
