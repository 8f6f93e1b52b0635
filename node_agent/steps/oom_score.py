"""Which process the kernel kills when memory runs out: a mark on one process, and what it had before."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.task_flags import start_of

FIRST = 1000
"""The one that the kernel kills before all others (proc_pid_oom_score_adj(5))."""


class OomScore(Step):
    """Writes `value` to oom_score_adj of a process; reverting writes back what it had.

    A process that has ended took it along, and one that has its number since then is not taken for it. Children
    that it starts inherit the value and keep it. Twice equals once.
    """

    kind: Literal["oom_score"] = "oom_score"
    pid: int = Field(ge=2)
    started: int
    value: int = Field(default=FIRST, ge=-1000, le=1000)
    default: int = Field(default=0, ge=-1000, le=1000, description="written back where the journal has lost it")

    @property
    def path(self) -> str:
        """The file."""
        return f"/proc/{self.pid}/oom_score_adj"

    def describe(self) -> str:
        return f"write {self.value} to {self.path}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", self.path),)

    def capture(self, reader: Reader) -> Undo:
        if not self._runs(reader):
            raise ConflictError(f"process {self.pid} has ended")
        return {"was": reader.read_text(self.path).strip()}

    def apply(self, host: Host) -> None:
        host.write_text(self.path, f"{self.value}\n")

    def revert(self, host: Host, undo: Undo | None) -> None:
        if self._stands(host):
            host.write_text(self.path, f"{self._before(undo)}\n")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if not self._stands(reader) or self._before(undo) == str(self.value):
            return ()
        return (f"{self.path} says {self.value}, it said {self._before(undo)}",)

    def _before(self, undo: Undo | None) -> str:
        return str(undo["was"]) if undo else str(self.default)

    def _runs(self, reader: Reader) -> bool:
        try:
            return start_of(reader, self.pid) == self.started
        except OSError:
            return False

    def _stands(self, reader: Reader) -> bool:
        try:
            return self._runs(reader) and reader.read_text(self.path).strip() == str(self.value)
        except OSError:  # it has ended just now
            return False
