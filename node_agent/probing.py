"""When this kernel is tried out: once a start, by whoever asks first, and no more by an agent that ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from node_agent.fault import Capability
from node_agent.host import Host
from node_agent.probe import run_probes


class Probing:
    """What the kernel of `host` can do, kept. For many threads. `known`: where somebody knows already."""

    def __init__(self, host: Host, known: Mapping[str, Capability] | None = None) -> None:
        self._host, self._known = host, known
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def found(self, again: bool = False) -> Mapping[str, Capability]:
        """What the kernel can do, tried out now if nobody did, or `again`."""
        with self._lock:
            if self._known is None or again:
                self._known = run_probes(self._host, lambda: not self._ending.is_set())
            return self._known

    def end(self, within_s: float) -> bool:
        """For an agent that ends: no further probe begins. Whether the one that runs has ended in time, and with
        it what it had made.
        """
        self._ending.set()
        ended = self._lock.acquire(timeout=within_s)
        if ended:
            self._lock.release()
        return ended
