"""Control groups that stand still: no process in them, nor below them, runs."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

_GONE = (FileNotFoundError, ProcessLookupError)
FROZEN, RUNNING = "1", "0"
_ROUNDS = 5
"""How often processes that were made meanwhile are looked for; the helper of the injection finds later ones."""


class FreezeGroups(Step):
    """Freezes these control groups by their cgroup.freeze; reverting thaws those that are frozen.

    None of them may be frozen beforehand, so those that are later are frozen from here. One that is gone took its
    processes along, so reverting twice equals once.

    `inside`: control groups of services. What runs in one is moved to a control group `name` in it, and that is
    frozen instead. systemd starts processes straight in the control group of a service, and waits, as pid 1, until
    they have become their program (vfork, clone(2)): frozen before, they would stop all of the system. Reverting
    moves them back and removes it.

    Source: Documentation/admin-guide/cgroup-v2.rst, "cgroup.freeze" (Linux 5.2).
    """

    kind: Literal["freeze_groups"] = "freeze_groups"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,126}$")
    folders: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"freeze {', '.join(self.groups)}"

    @property
    def groups(self) -> tuple[str, ...]:
        """The control groups that are frozen."""
        return (*self.folders, *(f"{folder}/{self.name}" for folder in self.inside))

    def resources(self) -> tuple[Resource, ...]:
        return tuple(Resource("value", f"{folder}/cgroup.freeze") for folder in (*self.folders, *self.inside))

    def capture(self, reader: Reader) -> Undo:
        frozen = [f for f in (*self.folders, *self.inside) if _says(reader, f) == FROZEN]
        if frozen:
            raise ConflictError(
                f"{frozen[0]} is frozen: somebody else has done that", allowed="thaw it, or another target"
            )
        return {}

    def apply(self, host: Host) -> None:
        there = [folder for folder in (*self.folders, *self.inside) if host.exists(f"{folder}/cgroup.freeze")]
        if not there:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), self.groups[0])
        for folder in there:
            if folder in self.folders:
                _write(host, folder, FROZEN)
                continue
            group = f"{folder}/{self.name}"
            for _ in range(_ROUNDS):
                if not host.processes.gather(folder, group):
                    break
            _write(host, group, FROZEN)

    def revert(self, host: Host, undo: Undo | None) -> None:
        for group in self.groups:
            if _says(host, group) == FROZEN:
                _write(host, group, RUNNING)
        for folder in self.inside:
            host.processes.give_back(f"{folder}/{self.name}", folder)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        frozen = (f"{group} is still frozen" for group in self.groups if _says(reader, group) == FROZEN)
        made = (group for group in self.groups[len(self.folders) :] if reader.exists(f"{group}/cgroup.procs"))
        return (*frozen, *(f"{group} is still there" for group in made))


def _says(reader: Reader, group: str) -> str:
    with suppress(*_GONE):
        return reader.read_text(f"{group}/cgroup.freeze").strip()
    return ""


def _write(host: Host, group: str, value: str) -> None:
    with suppress(*_GONE):
        if host.exists(f"{group}/cgroup.freeze"):
            host.write_text(f"{group}/cgroup.freeze", value)
