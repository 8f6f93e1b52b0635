"""A setting of the kernel below /proc/sys, and what it was."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.errors import ApplyError, ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

ROOT = "/proc/sys"


class Setting(BaseModel):
    """One file below /proc/sys and its text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[^/.][^\n]*$")
    text: str


class SysctlValue(Step):
    """Writes `value` to /proc/sys/`name`; reverting writes what was there, unless somebody has changed it since.

    Then theirs stays. `also` are settings that the kernel changes along with it, as they were: they are written
    back with it. What was there comes with the step, so no part of the journal is needed. Twice equals once.
    """

    kind: Literal["sysctl_value"] = "sysctl_value"
    name: str = Field(pattern=r"^[^/.][^\n]*$")
    value: str
    was: str
    also: tuple[Setting, ...] = ()

    @property
    def path(self) -> str:
        """Where it is."""
        return f"{ROOT}/{self.name}"

    def describe(self) -> str:
        return f"set {self.name} to {words(self.value)!r}, it says {words(self.was)!r}"

    def resources(self) -> tuple[Resource, ...]:
        return tuple(Resource("sysctl", name) for name in (self.name, *(one.name for one in self.also)))

    def capture(self, reader: Reader) -> Undo:
        if words(self.value) == words(self.was):
            raise ConflictError(f"{self.name} says {words(self.was)!r} already")
        return {}

    def apply(self, host: Host) -> None:
        host.write_text(self.path, f"{self.value}\n")
        found = words(host.read_text(self.path))
        if found != words(self.value):
            # What the kernel has made of it cannot be told from what somebody else has set.
            host.write_text(self.path, f"{self.was}\n")
            raise ApplyError(
                f"the kernel makes {found!r} of {self.value!r}", field="value", allowed="another value"
            )

    def revert(self, host: Host, undo: Undo | None) -> None:
        if self.stands(host):
            self._write_back(host)
        elif not self._says(host, self.name, self.was):
            return
        for one in self.also:
            if host.exists(f"{ROOT}/{one.name}") and not self._says(host, one.name, one.text):
                host.write_text(f"{ROOT}/{one.name}", f"{one.text}\n")

    def _write_back(self, host: Host) -> None:
        try:
            host.write_text(self.path, f"{self.was}\n")
        except OSError:
            # vm.dirty_bytes does not take the 0 that it said: it gets that from the kernel with vm.dirty_ratio.
            if not self.also:
                raise

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if self.stands(reader):
            return (f"{self.name} still says {words(self.value)!r}, it said {words(self.was)!r}",)
        return ()

    def stands(self, reader: Reader) -> bool:
        """Whether it says what this step has set. One that is gone took the value along."""
        return self._says(reader, self.name, self.value)

    def _says(self, reader: Reader, name: str, text: str) -> bool:
        path = f"{ROOT}/{name}"
        return reader.exists(path) and words(reader.read_text(path)) == words(text)


def words(text: str) -> str:
    """Text with one space wherever the kernel writes tabs."""
    return " ".join(text.split())
