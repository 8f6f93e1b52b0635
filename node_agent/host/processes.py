"""Processes and the units of systemd, as faults see and change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class UnitState:
    """What systemd says of a unit (systemctl(1), "show"). Words are empty where the unit has no such property.

    `quota_us` is its CPU time in microseconds a second, "infinity" for no limit, and `period_us` the period that
    is kept in, "infinity" for the usual one. `restarts`: how often it was started again by itself.
    """

    unit: str
    load: str = ""
    active: str = ""
    sub: str = ""
    result: str = ""
    main_pid: int = 0
    restart: str = ""
    restarts: int = 0
    invocation: str = ""
    transient: bool = False
    group: str = ""
    watchdog: str = ""
    quota_us: str = ""
    period_us: str = ""

    @property
    def runs(self) -> bool:
        """It runs, or is about to by itself."""
        return self.active in ("active", "activating", "reloading", "refreshing")


class ServicesReader(Protocol):
    """Looking at units."""

    def state(self, unit: str) -> UnitState:
        """A unit as it is now; `load` is "not-found" for one that systemd does not know."""

    def mark(self) -> str:
        """Where the system's journal ends now; empty where it cannot be read."""

    def last_job(self, unit: str, mark: str) -> str:
        """The last job of a unit since the mark that somebody asked systemd for: "start", "stop", "restart".

        Empty where there was none, or nobody knows.
        """


class Services(ServicesReader, Protocol):
    """Changing them."""

    def start(self, unit: str, *, forget: bool) -> None:
        """Start a unit and wait. `forget` its failures first: those of the start limit keep it from starting.

        Raises OSError or CommandError where it does not start.
        """

    def forget(self, unit: str) -> None:
        """Let systemd forget the failures of a unit, and how often it was started of late."""


class Processes(Protocol):
    """Acting on processes that are known by number and start time, so that no later one is hit."""

    def signal(self, pid: int, started: int, number: int) -> bool:
        """Send a signal; False where that process is gone. `started` in clock ticks since boot."""

    def remaining(self, processes: Sequence[tuple[int, int]], within_s: float) -> Sequence[int]:
        """Wait until these (pid, started) have ended; the pids of those that have not in time."""

    def gather(self, folder: str, group: str) -> int:
        """Move what runs in a control group itself into `group`, which is made where it is not there; how many.

        Processes that pid 1 is just starting stay: it stands still itself until they have become their program.
        """

    def give_back(self, group: str, folder: str) -> None:
        """Move all of `group` back to the control group that it is in, and remove it; gone is fine. Bounded."""

    def set_affinity(self, task: int, started: int, cpus: frozenset[int]) -> bool:
        """Let a thread run on these CPUs; False where it is gone or belongs to its CPU for good."""
