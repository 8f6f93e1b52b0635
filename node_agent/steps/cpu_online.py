"""CPUs that are taken out of use, and what was bound to them."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

CPUS = "/sys/devices/system/cpu"
IRQS = "/proc/irq"
_GONE = (FileNotFoundError, ProcessLookupError)
_KTHREADD = 2


class CpuOnline(Step):
    """Takes these CPUs offline; reverting brings back those that are, so twice equals once.

    The kernel moves what was bound to them, and does not move it back. Reverting does that for interrupts (their
    smp_affinity_list) and for threads that could run nowhere else. Control groups of version 2 keep what their
    cpuset.cpus says, and use a CPU again when it is back. Threads of the kernel that belong to a CPU come back by
    themselves; other changes, such as the masks of perf and of real-time runtimes, are theirs.

    Source: Documentation/core-api/cpu_hotplug.rst, Documentation/core-api/irq/irq-affinity.rst.
    """

    kind: Literal["cpu_online"] = "cpu_online"
    cpus: Annotated[tuple[int, ...], Field(min_length=1)]

    def describe(self) -> str:
        return f"take CPU {', '.join(map(str, self.cpus))} offline"

    def resources(self) -> tuple[Resource, ...]:
        return (*(Resource("value", _switch(cpu)) for cpu in self.cpus), Resource("cpu", "online"))

    def capture(self, reader: Reader) -> Undo:
        off = self._offline(reader)
        if off:
            raise ConflictError(f"CPU {', '.join(map(str, off))} is offline already", field="cpus")
        return {"irqs": self._bound_irqs(reader), "tasks": self._bound_tasks(reader)}

    def apply(self, host: Host) -> None:
        for cpu in self.cpus:
            host.write_text(_switch(cpu), "0\n")

    def revert(self, host: Host, undo: Undo | None) -> None:
        for cpu in self._offline(host):
            host.write_text(_switch(cpu), "1\n")
        if undo is None:
            return
        for path, cpus in undo["irqs"].items():
            with suppress(*_GONE):
                if host.read_text(path).strip() != cpus:
                    _write_unless_refused(host, path, cpus)
        for task, started, cpus in undo["tasks"]:
            host.processes.set_affinity(task, started, frozenset(cpus))

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"CPU {cpu} is offline" for cpu in self._offline(reader))

    def _offline(self, reader: Reader) -> tuple[int, ...]:
        """Those that are; one that was unplugged is none."""
        paths = ((cpu, _switch(cpu)) for cpu in self.cpus)
        return tuple(cpu for cpu, path in paths if reader.exists(path) and reader.read_text(path).strip() == "0")

    def _bound_irqs(self, reader: Reader) -> dict[str, str]:
        """The interrupts that may come to one of the CPUs, and to which they may."""
        found = {}
        for path in reader.glob(f"{IRQS}/[0-9]*/smp_affinity_list"):
            with suppress(OSError):
                text = reader.read_text(path).strip()
                if numbers(text) & set(self.cpus):
                    found[path] = text
        return found

    def _bound_tasks(self, reader: Reader) -> list[list[object]]:
        """Threads of programs that may run on these CPUs only: number, start time, CPUs."""
        found: list[list[object]] = []
        for path in reader.glob("/proc/[0-9]*/task/[0-9]*/status"):
            with suppress(OSError):
                said = dict(line.partition(":")[::2] for line in reader.read_text(path).splitlines())
                cpus = numbers(said.get("Cpus_allowed_list", "").strip())
                kernel = _KTHREADD in (int(said.get("PPid", 0)), int(said.get("Pid", 0)))
                if cpus and cpus <= set(self.cpus) and not kernel:
                    task = int(path.split("/")[4])
                    stat = reader.read_text(f"/proc/{task}/stat").rpartition(")")[2].split()
                    found.append([task, int(stat[19]), sorted(cpus)])
        return found


def numbers(text: str) -> set[int]:
    """The CPUs of a list such as "0-2,5"."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _switch(cpu: int) -> str:
    return f"{CPUS}/cpu{cpu}/online"


def _write_unless_refused(host: Host, path: str, text: str) -> None:
    """Some interrupts nobody can move (their driver manages them): these the kernel has moved back itself."""
    try:
        host.write_text(path, f"{text}\n")
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EINVAL, errno.EPERM):
            raise
