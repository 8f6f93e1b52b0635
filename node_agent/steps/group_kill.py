"""A limit of memory that one process does not survive: the kernel kills it, and nobody else of its group."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from pydantic import Field

from node_agent.host import Host, Reader
from node_agent.steps.base import Undo
from node_agent.steps.cgroup_limit import CgroupLimit, LimitFile
from node_agent.steps.task_flags import start_of

NEVER = "-1000"
"""A process that the kernel does not kill for want of memory (proc_pid_oom_score_adj(5))."""

_MOST, _SETTLES_S = 400, 5.0


class GroupKill(CgroupLimit):
    """Writes a memory.max below what is in use, while the kernel may kill nobody of the group but process `pid`.

    The kernel kills until there is less in use than the limit, and goes on while what it has killed is still
    giving its pages back: Linux 6.12 was seen to kill twice where once is enough. So the others of the group are
    taken from its choice until the limit is kept, and get back what they had. After that the limit is one as any.
    Reverting gives back what they had as well, where the agent has ended in between, but to no later process of
    the same number; twice equals once.
    """

    kind: Literal["group_kill"] = "group_kill"  # type: ignore[assignment]
    file: LimitFile = "memory.max"
    pid: int = Field(ge=2)

    def describe(self) -> str:
        return f"write {self.value} to {self.path}, while process {self.pid} alone may be killed"

    def capture(self, reader: Reader) -> Undo:
        others = {}
        for pid in _members(reader, self.group)[:_MOST]:
            with suppress(OSError):  # it has ended
                if int(pid) != self.pid:
                    others[pid] = [start_of(reader, int(pid)), reader.read_text(_score(pid)).strip()]
        return {**super().capture(reader), "others": others}

    def apply(self, host: Host) -> None:
        undo = self.capture(host)
        try:
            for pid in undo["others"]:
                with suppress(FileNotFoundError, ProcessLookupError):
                    host.write_text(_score(pid), NEVER)
            super().apply(host)
            until = host.boottime() + _SETTLES_S
            while _used(host, self.group) > self.value and host.boottime() < until:
                pass
        finally:
            self._let_go(host, undo)

    def revert(self, host: Host, undo: Undo | None) -> None:
        self._let_go(host, undo)
        super().revert(host, undo)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        spared = (f"{_score(pid)} says {NEVER}" for pid in self._spared(reader, undo))
        return (*spared, *super().leftovers(reader, undo))

    def _let_go(self, host: Host, undo: Undo | None) -> None:
        for pid, before in self._spared(host, undo).items():
            with suppress(FileNotFoundError, ProcessLookupError):
                host.write_text(_score(pid), before)

    def _spared(self, reader: Reader, undo: Undo | None) -> dict[str, str]:
        """Who is still taken from the kernel's choice, and what they had before."""
        found = {}
        for pid, (started, before) in (undo["others"] if undo else {}).items():
            with suppress(OSError):
                if (
                    start_of(reader, int(pid)) == started
                    and reader.read_text(_score(pid)).strip() == NEVER != before
                ):
                    found[pid] = before
        return found


def _members(reader: Reader, group: str) -> list[str]:
    """Everybody in it and below."""
    pids: dict[str, None] = {}
    for path in (f"{group}/cgroup.procs", *reader.glob(f"{group}/**/cgroup.procs")):
        with suppress(OSError):
            pids |= dict.fromkeys(reader.read_text(path).split())
    return list(pids)


def _score(pid: str) -> str:
    return f"/proc/{pid}/oom_score_adj"


def _used(reader: Reader, group: str) -> int:
    """Bytes; 0 where the group is gone."""
    with suppress(OSError):
        return int(reader.read_text(f"{group}/memory.current"))
    return 0
