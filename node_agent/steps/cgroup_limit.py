"""A limit of one control group: what it may have of memory or of processes, and what it could have before."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

LimitFile = Literal["memory.high", "memory.max", "memory.swap.max", "pids.max"]
_PROPERTIES = {
    "memory.high": "MemoryHigh", "memory.max": "MemoryMax", "memory.swap.max": "MemorySwapMax",
    "pids.max": "TasksMax",
}  # fmt: skip
"""What systemd calls them: systemd.resource-control(5)."""

_NONE = "max"


def _group(path: str) -> str:
    if not path.startswith("/sys/fs/cgroup/") or ".." in path.split("/"):
        raise ValueError(f"{path} is no control group below the root")
    return path


class CgroupLimit(Step):
    """Writes `value` to `file` of control group `group`; reverting writes back what was read there before.

    A control group that is gone took its limit along. One of the same name that was made meanwhile, as by a
    restart of its unit, gets what systemd has for `unit`, or no limit. A value that somebody else has written
    meanwhile stays. So reverting twice equals once. `default` is written back where the journal has lost what was
    there.

    Source: Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files" and "PID Interface Files".
    """

    kind: Literal["cgroup_limit"] = "cgroup_limit"
    group: Annotated[str, AfterValidator(_group)]
    file: LimitFile
    value: int = Field(ge=0, description="bytes, in whole pages, or processes")
    unit: str = ""
    default: str = _NONE

    @property
    def path(self) -> str:
        """The file."""
        return f"{self.group}/{self.file}"

    def describe(self) -> str:
        return f"write {self.value} to {self.path}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("cgroup", self.path),)

    def capture(self, reader: Reader) -> Undo:
        if not reader.exists(self.path):
            raise ConflictError(f"there is no {self.path} any more")
        return {"was": reader.read_text(self.path).strip(), "inode": self._inode(reader)}

    def apply(self, host: Host) -> None:
        host.write_text(self.path, f"{self.value}\n")

    def revert(self, host: Host, undo: Undo | None) -> None:
        if self.stands(host):
            before = self._before(host, undo)
            if before != str(self.value):
                host.write_text(self.path, f"{before}\n")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if not self.stands(reader) or self._before(reader, undo) == str(self.value):
            return ()
        return (f"{self.path} says {self.value}",)

    def stands(self, reader: Reader) -> bool:
        """Whether the control group is there and has this limit."""
        try:
            return reader.read_text(self.path).strip() == str(self.value)
        except OSError:  # gone, perhaps just now
            return False

    def _before(self, reader: Reader, undo: Undo | None) -> str:
        if undo is None:
            return self.default
        if undo["inode"] == self._inode(reader):
            return str(undo["was"])
        return _configured(reader, self.unit, _PROPERTIES[self.file]) if self.unit else _NONE

    def _inode(self, reader: Reader) -> int:
        info = reader.file_info(self.group)
        return info.inode if info else 0


def _configured(reader: Reader, unit: str, name: str) -> str:
    """What systemd gives a unit; no limit where it does not know."""
    shown = reader.query(("systemctl", "show", f"--property={name}", "--", unit)) or ""
    value = dict(line.partition("=")[::2] for line in shown.splitlines()).get(name, "").strip()
    return value if value.isdigit() else _NONE
