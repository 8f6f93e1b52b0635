"""The flag `make-it-fail` of tasks, by which the kernel's fault facilities tell victims from everybody else.

Interface: /proc/PID/task/TID/make-it-fail (Documentation/fault-injection/fault-injection.rst). Each thread has its
own; a child and a new thread inherit it. There is one flag for all facilities.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from pydantic import BaseModel, ConfigDict

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

FLAGGED_TASKS = "/proc/*/task/*/make-it-fail"
_ROUNDS = 20
"""How often threads that were made meanwhile are looked for."""

_GONE = (FileNotFoundError, ProcessLookupError)


class Process(BaseModel):
    """A process that is not taken for a later one of the same number. `started` in clock ticks since boot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    started: int


def start_of(reader: Reader, pid: int) -> int:
    """When a process was started: field 22 of /proc/PID/stat (proc_pid_stat(5)). Raises OSError: it is gone."""
    text = reader.read_text(f"/proc/{pid}/stat")
    return int(text.rpartition(")")[2].split()[19])


def flagged_tasks(reader: Reader) -> tuple[str, ...]:
    """The files of the tasks that have the flag; none on a kernel without it."""
    if not reader.exists("/proc/self/make-it-fail"):
        return ()
    found = []
    for path in reader.glob("/proc/[0-9]*/task/[0-9]*/make-it-fail"):
        with suppress(*_GONE):
            if reader.read_text(path).strip() != "0":
                found.append(path)
    return tuple(found)


class TaskFlags(Step):
    """Gives the flag to all threads of these processes. Reverting takes it from every task that has it.

    Nobody may have it beforehand, so all who have it later have it from here: the processes themselves, their
    children, and children of theirs. Taking it away twice equals once.
    """

    kind: Literal["task_flags"] = "task_flags"
    processes: tuple[Process, ...]

    def describe(self) -> str:
        pids = ", ".join(str(p.pid) for p in self.processes)
        return f"set make-it-fail of all threads of {pids}; their children will inherit it"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", FLAGGED_TASKS),)

    def capture(self, reader: Reader) -> Undo:
        flagged = flagged_tasks(reader)
        if flagged:
            raise ConflictError(f"somebody else has marked {len(flagged)} tasks to fail, {flagged[0]} among them")
        return {}

    def apply(self, host: Host) -> None:
        alive = [p for p in self.processes if _is_there(host, p)]
        if not alive:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), "all processes of the target have ended")
        for _ in range(_ROUNDS):
            if not sum(_write(host, _threads(host, p.pid), "1") for p in alive):
                return
        raise OSError(
            errno.EBUSY, os.strerror(errno.EBUSY), "the target makes threads faster than they are marked"
        )

    def revert(self, host: Host, undo: Undo | None) -> None:
        for _ in range(_ROUNDS):
            if not _write(host, flagged_tasks(host), "0"):
                return

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"{path} still says 1" for path in flagged_tasks(reader))


def _is_there(reader: Reader, process: Process) -> bool:
    with suppress(*_GONE):
        return start_of(reader, process.pid) == process.started
    return False


def _threads(reader: Reader, pid: int) -> Sequence[str]:
    return [f"/proc/{pid}/task/{tid}/make-it-fail" for tid in reader.listdir(f"/proc/{pid}/task")]


def _write(host: Host, paths: Sequence[str], value: str) -> int:
    """Write where it says something else; how many files that were."""
    changed = 0
    for path in paths:
        with suppress(*_GONE):
            if host.read_text(path).strip() != value:
                host.write_text(path, value)
                changed += 1
    return changed
