"""A value in a file of the kernel: a setting below /sys, /proc or debugfs, and what was there before."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

PLACES = ("/sys/", "/proc/")
"""Where every file is the kernel's and forgets what it was told when the machine boots."""


class FileValue(Step):
    """Writes `value` to `path`; reverting writes back what was read there before.

    `default` is what the kernel starts with: it is written back where the journal has lost what was there.
    `exclusive`: the file must say `default` beforehand, or somebody else uses the facility. A file that is gone
    (its device was unplugged, its process has ended) took the value along. Writing back twice equals once.
    """

    kind: Literal["file_value"] = "file_value"
    path: str
    value: str
    default: str = ""
    exclusive: bool = False

    @field_validator("path")
    @classmethod
    def _path_of_the_kernel(cls, value: str) -> str:
        if not value.startswith(PLACES) or ".." in value.split("/"):
            raise ValueError(f"{value} is not below {' or '.join(PLACES)}")
        return value

    def describe(self) -> str:
        return f"write {self.value} to {self.path}"

    def resources(self) -> tuple[Resource, ...]:
        if self.path.startswith("/proc/sys/"):
            return (Resource("sysctl", self.path.removeprefix("/proc/sys/")),)
        return (Resource("value", self.path),)

    def capture(self, reader: Reader) -> Undo:
        found = reader.read_text(self.path).strip()
        if self.exclusive and found != self.default:
            raise ConflictError(
                f"{self.path} says {found}, not {self.default}: somebody else uses it",
                allowed=f"write {self.default} to it when they are done",
            )
        return {"was": found}

    def apply(self, host: Host) -> None:
        host.write_text(self.path, f"{self.value}\n")  # some files of sysfs take only whole lines

    def revert(self, host: Host, undo: Undo | None) -> None:
        before = self._before(undo)
        if before and host.exists(self.path) and host.read_text(self.path).strip() != before:
            host.write_text(self.path, f"{before}\n")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        before = self._before(undo)
        if not before or not reader.exists(self.path):
            return ()
        found = reader.read_text(self.path).strip()
        # A machine that was rebooted meanwhile has forgotten what was there and says what it starts with.
        return () if found in (before, self.default) else (f"{self.path} says {found}, it said {before}",)

    def _before(self, undo: Undo | None) -> str:
        return str(undo["was"]) if undo else self.default
