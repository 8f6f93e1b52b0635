"""A signal, once, to processes that are known by number and start time."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.task_flags import Process, start_of

_WAIT_S = 2.0
_GONE = (FileNotFoundError, ProcessLookupError)


class SignalProcesses(Step):
    """Sends signal `number` to each of `processes` that is still there, or kills all in `folders` at one stroke.

    `folders` are control groups: writing to cgroup.kill (Documentation/admin-guide/cgroup-v2.rst, Linux 5.14) also
    reaches the processes that are made meanwhile. There is nothing to take back.
    """

    kind: Literal["signal_processes"] = "signal_processes"
    number: int = Field(ge=1, le=64)
    processes: Annotated[tuple[Process, ...], Field(min_length=1)]
    folders: tuple[str, ...] = ()
    wait: bool = True

    def describe(self) -> str:
        pids = ", ".join(str(p.pid) for p in self.processes)
        return f"send {signal_name(self.number)} to {'all of ' if self.folders else ''}{pids}"

    def resources(self) -> tuple[Resource, ...]:
        return ()

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        alive = [p for p in self.processes if is_there(host, p)]
        if not alive:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "all processes of the target have ended")
        for folder in self.folders:
            with suppress(*_GONE):
                if host.exists(f"{folder}/cgroup.kill"):
                    host.write_text(f"{folder}/cgroup.kill", "1")
        for one in alive:
            host.processes.signal(one.pid, one.started, self.number)
        if self.wait:
            host.processes.remaining(tuple((p.pid, p.started) for p in self.processes), _WAIT_S)

    def revert(self, host: Host, undo: Undo | None) -> None:
        """What has ended has ended."""

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return ()


def signal_name(number: int) -> str:
    """SIGKILL, or "signal 40" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_there(reader: Reader, process: Process) -> bool:
    """Whether that process, not a later one of its number, is still there."""
    with suppress(*_GONE):
        return start_of(reader, process.pid) == process.started
    return False
