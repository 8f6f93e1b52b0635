"""Memory of the simulated machine: limits of control groups, swap, frames of RAM, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from node_agent.host import LogRecord
from node_agent.host.frames import PAGE, Page

if TYPE_CHECKING:
    from tests.contract.simulated import Kernel, SimulatedHost

ROOT = "/sys/fs/cgroup"
_GROUPS = {f"{ROOT}/work": 700, f"{ROOT}/system.slice/cron.service": 701}
_POISON, _UNPOISON = "/sys/devices/system/memory/hard_offline_page", "/sys/kernel/debug/hwpoison/unpoison-pfn"
_BROKEN = "/simulated/broken-frames"
_SWAPS = "/proc/swaps"
_HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"
_KILLS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill {}\noom_group_kill 0"


def texts() -> dict[str, str]:
    """The files as they are at rest."""
    limits = {"memory.high": "max", "memory.max": "max", "memory.swap.max": "max", "pids.max": "844"}
    groups = {f"{group}/{name}": text for group in _GROUPS for name, text in limits.items()}
    return {
        **groups,
        f"{ROOT}/system.slice/memory.high": "max",
        f"{ROOT}/system.slice/pids.max": "max",
        **{f"/proc/{pid}/oom_score_adj": "0" for pid in _GROUPS.values()},
        "/proc/sys/kernel/threads-max": "7700",
        "/proc/sys/fs/file-max": "9223372036854775807",
        _SWAPS: _HEADER,
        _BROKEN: "",
        _POISON: "",
        _UNPOISON: "",
    }


def seen_texts() -> dict[str, str]:
    """What is only looked at."""
    stat = "anon 8388608\nfile 4194304\nkernel_stack 65536\npagetables 65536\nshmem 0\nslab_unreclaimable 65536"
    groups = {
        f"{group}/{name}": text
        for group in _GROUPS
        for name, text in (
            ("memory.stat", stat), ("memory.events", _KILLS.format(0)), ("pids.current", "2"),
            ("pids.events", "max 0"), ("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"),
        )
    }  # fmt: skip
    return {
        **groups,
        **{f"/proc/{pid}/statm": "5000 2000 500 1 0 1500 0" for pid in _GROUPS.values()},
        **{f"/proc/{pid}/comm": "victim" for pid in _GROUPS.values()},
        **{f"/proc/{pid}/cgroup": f"0::{group.removeprefix(ROOT)}\n" for group, pid in _GROUPS.items()},
        "/proc/vmstat": "pswpin 5\noom_kill 0",
        "/proc/loadavg": "0.10 0.10 0.10 1/120 4242",
        "/proc/sys/fs/file-nr": "1500\t0\t9223372036854775807",
        "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7",
    }


def boot(known: dict[str, str]) -> None:
    """What a reboot makes of it."""
    known |= texts() | seen_texts()


def at_rest(known: dict[str, str]) -> bool:
    """Whether no limit is changed, nothing is broken and nobody swaps."""
    return all(known[path] == text for path, text in texts().items())


def write(kernel: Kernel, path: str, text: str) -> bool:
    """Do what the kernel does with a write to one of these files; False where it is none."""
    if path in (_POISON, _UNPOISON):
        frame, broken = int(text, 16) >> (12 if path == _POISON else 0), set(kernel.texts[_BROKEN].split())
        broken = broken | {str(frame)} if path == _POISON else broken - {str(frame)}
        kernel.texts[_BROKEN] = " ".join(sorted(broken))
        if path == _POISON:
            _log(kernel, f"Memory failure: {frame:#x}: recovery action for dirty LRU page: Recovered")
        return True
    if path in texts():
        kernel.texts[path] = text
        group = path.removesuffix("/memory.max")
        if group in _GROUPS and path != group and text.isdigit() and int(text) < 8 << 20:
            kill(kernel, group)
        return True
    return False


def kill(kernel: Kernel, group: str) -> None:
    """The kernel kills the process of a control group, for want of memory."""
    path, below = f"{group}/memory.events", group.removeprefix(ROOT)
    before = int(kernel.texts[path].partition("oom_kill ")[2].split()[0])
    kernel.texts[path] = _KILLS.format(before + 1)
    _log(kernel, f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg={below},task_memcg={below}")
    _log(kernel, f"Memory cgroup out of memory: Killed process {_GROUPS[group]} (victim) total-vm:20000kB")


def helper_started(kernel: Kernel, payload: str) -> None:
    """One that takes all memory is ready when somebody has been killed."""
    if '"mode": "exhaust"' in payload:
        kill(kernel, f"{ROOT}/work")


def _log(kernel: Kernel, text: str) -> None:
    kernel.log.append(LogRecord(len(kernel.log), int(kernel.clock * 1e6), 4, text))


def run(kernel: Kernel, argv: tuple[str, ...]) -> bool:
    """Commands of swap; False where it is another."""
    command, path = argv[0], argv[-1]
    if command == "fallocate":
        kernel.texts[path] = ""
    elif command == "swapon":
        kernel.texts[_SWAPS] += f"\n{path} file 65536 128 32767"
    elif command == "swapoff":
        lines = kernel.texts[_SWAPS].splitlines()
        kernel.texts[_SWAPS] = "\n".join(line for line in lines if not line.startswith(f"{path} "))
    return command in ("fallocate", "mkswap", "swapon", "swapoff")


class SimulatedFrames:
    """`host.frames` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def own_pages(self, pid: int, only: int | None = None) -> Sequence[Page]:
        self._h.alive()
        found = (Page(pid * 16 + n, 0x7F0000000000 + n * PAGE) for n in range(4))
        return tuple(p for p in found if only in (None, p.at) and not self.is_poisoned(p.frame))

    def clean_pages(self, path: str, only: int | None = None) -> Sequence[Page]:
        self._h.alive()
        found = (Page(0x9000 + n, n * PAGE) for n in range(4))
        return tuple(p for p in found if only in (None, p.at) and not self.is_poisoned(p.frame))

    def is_poisoned(self, frame: int) -> bool:
        self._h.alive()
        return str(frame) in self._h.kernel.texts[_BROKEN].split()
