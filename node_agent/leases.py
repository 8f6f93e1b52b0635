"""Leases: every injection ends by itself. Time is the hardware's own, which nobody can step or hurry."""

from __future__ import annotations

from node_agent.errors import Refusal

DEFAULT_LEASE_S = 15 * 60.0
MAX_LEASE_S = 24 * 3600.0


def checked_lease(lease_s: float) -> float:
    """A lease in seconds; 0 means the default. Raises :class:`Refusal` outside (0, 24 h]."""
    if lease_s == 0:
        return DEFAULT_LEASE_S
    if not 0 < lease_s <= MAX_LEASE_S:  # also refuses NaN
        raise Refusal(
            f"for: a lease of {lease_s:g} s",
            field="for",
            allowed="more than 0 s, at most 24 h; it can be extended",
        )
    return lease_s


class Backoff:
    """When to try a stuck injection again: after 1 s, then twice as long each time, at most a minute."""

    def __init__(self) -> None:
        self._wait, self._next = 1.0, 0.0

    def due(self, now: float) -> bool:
        """Whether it is time, on the boot clock; if so the next time is put off."""
        if now < self._next:
            return False
        self._next, self._wait = now + self._wait, min(self._wait * 2, 60.0)
        return True
