"""Ids that somebody recovered before they were planted: the request to plant may still be on its way.

A client that gave up waiting recovers what it asked for. When its request was only queued, it must not plant the
fault afterwards, with nobody left who knows of it but the lease.
"""

from __future__ import annotations

from collections.abc import Callable

from node_agent.errors import ConflictError

KEPT_S = 600.0
"""No client waits longer for an answer, so no request is older."""


class Forestalled:
    """The ids, each for :data:`KEPT_S` of the boot clock. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def add(self, injection_id: str) -> None:
        """This one is not to be planted any more."""
        now = self._clock()
        for known, until in tuple(self._until.items()):
            if until <= now:
                self._until.pop(known, None)
        self._until[injection_id] = now + KEPT_S

    def __contains__(self, injection_id: str) -> bool:
        return self._until.get(injection_id, 0.0) > self._clock()

    def refuse(self, injection_id: str) -> None:
        """Raises :class:`ConflictError` for one that is forestalled."""
        if injection_id in self:
            raise ConflictError(
                f"{injection_id} was recovered before it was planted", field="id", allowed="another id"
            )
