"""A frame of RAM that the kernel takes for broken, with the page that a process or a file has in it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ApplyError, ConflictError
from node_agent.host import Host, Reader
from node_agent.host.frames import Page
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.task_flags import start_of

DOORS = "/sys/kernel/debug/hwpoison"
UNPOISON = f"{DOORS}/unpoison-pfn"
POISON = "/sys/devices/system/memory/hard_offline_page"
"""Takes an address of RAM, and reports the page as broken by software (ABI/testing/sysfs-memory-page-offline)."""

_SHIFT = 12


class PoisonedPage(Step):
    """Tells the kernel that frame `frame` is broken; reverting tells it that the frame is well again.

    The page is of process `pid`, at address `at`, or of file `path`, at that offset: where it has moved meanwhile
    nothing happens. What was in it is lost to a process for good; a file has it on its disk.

    Source: Documentation/mm/hwpoison.rst. The kernel takes back only what software has poisoned, not what the
    hardware has reported. A frame that is well needs nothing, so twice equals once.
    """

    kind: Literal["poisoned_page"] = "poisoned_page"
    frame: int = Field(gt=0)
    at: int = Field(ge=0)
    pid: int = 0
    started: int = 0
    path: str = ""

    def describe(self) -> str:
        whose = self.path or f"process {self.pid}"
        return f"let frame {self.frame:#x} be broken: {self.at:#x} of {whose}"

    def resources(self) -> tuple[Resource, ...]:
        whose = self.path or f"process {self.pid}"
        return (Resource("value", f"frame {self.frame:#x}"), Resource("value", f"frames of {whose}"))

    def capture(self, reader: Reader) -> Undo:
        if reader.frames.is_poisoned(self.frame):
            raise ConflictError(f"frame {self.frame:#x} is broken already")
        return {}

    def apply(self, host: Host) -> None:
        if Page(self.frame, self.at) not in self._pages(host):
            raise ApplyError("the page has moved or is in use by others meanwhile")
        host.write_text(POISON, f"{self.frame << _SHIFT:#x}")

    def revert(self, host: Host, undo: Undo | None) -> None:
        if host.frames.is_poisoned(self.frame):
            host.write_text(UNPOISON, f"{self.frame:#x}")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return (f"frame {self.frame:#x} is broken",) if reader.frames.is_poisoned(self.frame) else ()

    def _pages(self, reader: Reader) -> tuple[Page, ...]:
        if self.path:
            return tuple(reader.frames.clean_pages(self.path, self.at))
        if start_of(reader, self.pid) != self.started:
            return ()
        return tuple(reader.frames.own_pages(self.pid, self.at))
