"""CPUs by number, as the kernel writes lists of them, and which are there."""

from __future__ import annotations

from collections.abc import Iterable

from node_agent.host import Reader

CPU_LIST = r"^(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?$"
"""Lists such as "0", "1,4-6"."""

CPUS = "/sys/devices/system/cpu"
"""Documentation/ABI/testing/sysfs-devices-system-cpu."""


def cpus_in(text: str) -> tuple[int, ...]:
    """The numbers of a list, sorted."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def shown(cpus: Iterable[int]) -> str:
    """The list that has these numbers."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def online_cpus(reader: Reader) -> tuple[int, ...]:
    """Those that run now."""
    return cpus_in(reader.read_text(f"{CPUS}/online"))


def present_cpus(reader: Reader) -> tuple[int, ...]:
    """Those that are plugged in, running or not."""
    return cpus_in(reader.read_text(f"{CPUS}/present"))
