"""What caches of names remember is forgotten, so that a change to answers is seen."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.steps.base import Step, Undo

CACHES = {
    "/run/systemd/resolve/stub-resolv.conf": ("resolvectl", "flush-caches"),
    "/run/nscd/socket": ("nscd", "--invalidate=hosts"),
}
"""By what is there while the cache runs: the command that empties it (resolvectl(1), nscd(8))."""


class FlushNames(Step):
    """Empties the caches of systemd-resolved and nscd, where they run: when it is applied, or when it is reverted.

    The first step of a plan and the last: then no cache learns anything between a change and its flush. A cache
    has no memory worth keeping, so nothing is restored, and twice equals once.
    """

    kind: Literal["flush_names"] = "flush_names"
    when: Literal["inject", "recover"]
    tag: str

    def describe(self) -> str:
        moment = "now" if self.when == "inject" else "at the recovery"
        return f"empty the caches of names that run (systemd-resolved, nscd) {moment}"

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        if self.when == "inject":
            _flush(host)

    def revert(self, host: Host, undo: Undo | None) -> None:
        if self.when == "recover":
            _flush(host)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return ()


def running_caches(reader: Reader) -> tuple[str, ...]:
    """The programs of the caches that run now."""
    return tuple(argv[0] for path, argv in CACHES.items() if reader.exists(path))


def _flush(host: Host) -> None:
    for path, argv in CACHES.items():
        if host.exists(path):
            host.query(argv)  # one that has ended has forgotten, too
