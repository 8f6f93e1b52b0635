"""Processes that stand still by SIGSTOP, one or with all their descendants."""

from __future__ import annotations

import errno
import os
import signal
from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.members import Member, everybody, find, tree_of
from node_agent.steps.base import Resource, Step, Undo

_STOPPED = ("T", "t")
_ROUNDS = 10


class StopProcesses(Step):
    """Stops process `pid` that was started at `started`, and with `tree` its descendants, by SIGSTOP.

    Those that stand still already are not touched and not continued. Reverting continues those that stand still
    and were not; a number that is used again is another process. Continuing twice equals once.

    A child that is made between the look and the signal is stopped in the next round; it is found again from those
    that the journal names, as their descendant.
    """

    kind: Literal["stop_processes"] = "stop_processes"
    pid: int
    started: int
    tree: bool = False

    def describe(self) -> str:
        return f"stop process {self.pid}{' and its descendants' if self.tree else ''} by SIGSTOP"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", f"process {self.pid} since tick {self.started}"),)

    def capture(self, reader: Reader) -> Undo:
        found = self.victims(reader)
        if found and found[0].state in _STOPPED:
            raise ConflictError(f"process {self.pid} stands still already", allowed="a process that runs")
        stopped = [[p.pid, p.started] for p in found if p.state in _STOPPED]
        return {"running": [[p.pid, p.started] for p in found if p.state not in _STOPPED], "stopped": stopped}

    def apply(self, host: Host) -> None:
        for _ in range(_ROUNDS):
            running = [p for p in self.victims(host) if p.state not in _STOPPED]
            if not running:
                break
            for one in running:
                host.processes.signal(one.pid, one.started, signal.SIGSTOP)
        if not self.victims(host):
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), f"process {self.pid}")

    def revert(self, host: Host, undo: Undo | None) -> None:
        for one in self._stopped_here(host, undo):
            host.processes.signal(one.pid, one.started, signal.SIGCONT)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"process {p.pid} ({p.comm}) stands still" for p in self._stopped_here(reader, undo))

    def victims(self, reader: Reader) -> tuple[Member, ...]:
        """Who is meant and lives, the first of them first."""
        first = find(reader, self.pid, self.started)
        if first is None:
            return ()
        family = tree_of(everybody(reader), self.pid) if self.tree else []
        return (first, *(p for p in family if p.pid != self.pid and p.alive))

    def _stopped_here(self, reader: Reader, undo: Undo | None) -> list[Member]:
        """Those that stand still, and did not before."""
        before = {tuple(one) for one in undo["stopped"]} if undo else set()
        roots = undo["running"] if undo else [[self.pid, self.started]]
        known = everybody(reader)
        found: dict[int, Member] = {}
        for pid, started in roots:
            if pid in known and known[pid].started == started:
                family = tree_of(known, pid) if self.tree else [known[pid]]
                found |= {p.pid: p for p in family}
        return [p for p in found.values() if p.state in _STOPPED and (p.pid, p.started) not in before]
