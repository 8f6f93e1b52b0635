"""Control groups that stand still: no process in them, nor below them, runs."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

_GONE = (FileNotFoundError, ProcessLookupError)
FROZEN, RUNNING = "1", "0"


class FreezeGroups(Step):
    """Writes 1 to cgroup.freeze of these control groups; reverting writes 0 where it says 1, so twice equals once.

    None of them may be frozen beforehand, so those that are later are frozen from here. One that is gone took its
    processes along. Source: Documentation/admin-guide/cgroup-v2.rst, "cgroup.freeze" (Linux 5.2).
    """

    kind: Literal["freeze_groups"] = "freeze_groups"
    folders: Annotated[tuple[str, ...], Field(min_length=1)]

    def describe(self) -> str:
        return f"freeze {', '.join(self.folders)}"

    def resources(self) -> tuple[Resource, ...]:
        return tuple(Resource("value", path) for path in self._files)

    @property
    def _files(self) -> tuple[str, ...]:
        return tuple(f"{folder}/cgroup.freeze" for folder in self.folders)

    def capture(self, reader: Reader) -> Undo:
        frozen = self._frozen(reader)
        if frozen:
            raise ConflictError(
                f"{frozen[0]} says 1: somebody else has frozen it", allowed="thaw it, or another target"
            )
        return {}

    def apply(self, host: Host) -> None:
        there = [path for path in self._files if host.exists(path)]
        if not there:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH), self._files[0])
        for path in there:
            with suppress(*_GONE):
                host.write_text(path, FROZEN)

    def revert(self, host: Host, undo: Undo | None) -> None:
        for path in self._frozen(host):
            with suppress(*_GONE):
                host.write_text(path, RUNNING)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"{path} still says 1" for path in self._frozen(reader))

    def _frozen(self, reader: Reader) -> tuple[str, ...]:
        found = []
        for path in self._files:
            with suppress(*_GONE):
                if reader.read_text(path).strip() == FROZEN:
                    found.append(path)
        return tuple(found)
