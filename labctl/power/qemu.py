"""The power switch of a virtual machine of the lab."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from labctl.errors import LabError
from labctl.power.model import PowerState
from labctl.progress import Progress, SilentProgress, Task

GRACEFUL_S = 180.0
_POLL_S = 0.1


class Machines(Protocol):
    """What is asked of :class:`labctl.lab.qemu.QemuLab`."""

    def runs(self, name: str) -> bool: ...
    def power_off(self, name: str) -> None: ...
    def power_on(self, name: str, progress: Progress | None = None) -> None: ...


class QemuPower:
    """See :class:`labctl.power.model.Power`."""

    real = False

    def __init__(
        self,
        lab: Machines,
        name: str,
        shut_down: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lab, self._name, self._shut_down, self._clock, self._sleep = lab, name, shut_down, clock, sleep
        self.what = name

    def state(self) -> PowerState:
        """Whether its process runs."""
        return "on" if self._lab.runs(self._name) else "off"

    def off(self, graceful: bool, task: Task) -> bool:
        """End the process, or have the guest shut down and wait for its end."""
        if not self._lab.runs(self._name):
            return False
        if graceful:
            self._shut_down()
            self._wait(task)
        else:
            self._lab.power_off(self._name)
        return True

    def on(self, task: Task) -> bool:
        """Boot it, and wait until it is up."""
        if self._lab.runs(self._name):
            return False
        task.update("booting")
        self._lab.power_on(self._name, SilentProgress())
        return True

    def _wait(self, task: Task) -> None:
        task.update("shutting down")
        deadline = self._clock() + GRACEFUL_S
        while self._lab.runs(self._name):
            if self._clock() >= deadline:
                raise LabError(
                    f"{self._name} did not shut down within {GRACEFUL_S:g} s",
                    f"labctl power {self._name} off pulls the plug",
                )
            self._sleep(_POLL_S)
