"""What the agent answers when it does not do what it was asked.

A :class:`Refusal` is the caller's to mend and leaves the node untouched. An :class:`ApplyError` means that
something went wrong half way: everything done so far has been undone, or the injection is stuck and says
what is left.
"""

from __future__ import annotations


class AgentError(Exception):
    """Base of everything the agent reports in one line."""

    code = "internal"

    def __init__(self, message: str, *, field: str = "", allowed: str = "") -> None:
        super().__init__(message)
        self.message, self.field, self.allowed = message, field, allowed


class Refusal(AgentError):
    """Bad input: which field, what was wrong, what is allowed. Nothing was changed."""

    code = "refused"


class NotFoundError(AgentError):
    """No such fault or injection."""

    code = "not_found"


class ConflictError(AgentError):
    """Somebody else holds the resource, or the id is taken by another request. Nothing was changed."""

    code = "conflict"


class UnsupportedError(AgentError):
    """The node lacks a capability; `allowed` holds the remedy. Nothing was changed."""

    code = "unsupported"


class StoppedError(AgentError):
    """`labctl stop` is in force: no new fault until it is cleared."""

    code = "stopped"


class StorageError(AgentError):
    """The journal cannot be written, so nothing may be changed."""

    code = "storage"


class ApplyError(AgentError):
    """The fault could not be planted or did not bite; what was done has been undone."""

    code = "apply_failed"


class StuckError(AgentError):
    """Something could not be undone; the message says what is left."""

    code = "stuck"


class RevokedError(AgentError):
    """The caller's certificate is let in no more. Nothing was changed."""

    code = "revoked"
