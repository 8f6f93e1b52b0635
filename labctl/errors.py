"""What can go wrong on the control side, and the exit code each kind has.

Three kinds of wrong are kept apart (design, section 9): a bug crashes with a traceback; a broken
lab or bad input is a :class:`LabctlError` and becomes one line; a broken target is a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

LIES = "do not believe it: look at the node itself, and install the agent anew"
"""The hint where an agent's answers cannot be true."""


class ExitCode(IntEnum):
    """Exit codes of `labctl`, fixed by the design."""

    PASS = 0
    FAIL = 1
    UNKNOWN = 2
    UNSUPPORTED = 3
    USAGE = 64
    LAB_BROKE = 70
    NODE_DIRTY = 75


class LabctlError(Exception):
    """Something the user can act on: a message of one line, an optional hint, an exit code."""

    exit_code = ExitCode.LAB_BROKE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.nodes: Mapping[str, str] = {}
        """What each node said, where several failed: the message names only some of them."""


class LabError(LabctlError):
    """The lab is broken (a node does not answer, a machine lacks memory). Never the target's fault."""


class UsageError(LabctlError):
    """Bad input: names the field, what was wrong and what is allowed."""

    exit_code = ExitCode.USAGE


class NotThereError(UsageError):
    """A node knows nothing of that name: no such injection, no such fault."""


class UnsupportedError(LabctlError):
    """The thing asked for cannot be done on this machine or node; the hint is the remedy."""

    exit_code = ExitCode.UNSUPPORTED


class NodeDirtyError(LabctlError):
    """A node was left with residue, or may have been: someone has to look."""

    exit_code = ExitCode.NODE_DIRTY
