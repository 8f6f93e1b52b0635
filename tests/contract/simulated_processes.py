"""Processes, units, CPUs and their control groups on the simulated machine."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node_agent.host.processes import UnitState

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

ROOT = "/sys/fs/cgroup"
UNIT, GROUP, MAIN = "cron.service", f"{ROOT}/system.slice/cron.service", 701
_SWITCH = f"{ROOT}/system.slice/cgroup.subtree_control"
_CPUS = "/sys/devices/system/cpu"
_POLICY = f"{_CPUS}/cpufreq/policy0"
_PIDS = (1, 700, 701, 800, 4242)
_HARMLESS = {signal.SIGCONT: "S", signal.SIGSTOP: "T", signal.SIGTSTP: "T"}


@dataclass
class SimService:
    """A unit: whether it runs, for the how-many-th time, and whether systemd starts it again once more."""

    active: str = "active"
    run: int = 1
    spared: bool = True


def services() -> dict[str, SimService]:
    """Units as they are after boot."""
    return {UNIT: SimService()}


def texts() -> dict[str, str]:
    """The files that faults of processes and CPUs change, as they are at rest, and those they look at."""
    groups = {
        f"{group}/{name}": text
        for group in (f"{ROOT}/work", GROUP)
        for name, text in (("cgroup.freeze", "0"), ("cgroup.events", "populated 1\nfrozen 0"), ("cpu.stat", ""))
    }
    cpus = {f"{_CPUS}/online": "0-1", f"{_CPUS}/present": "0-1", f"{_CPUS}/cpu1/online": "1"}
    frequency = {"scaling_max_freq": "3000000", "cpuinfo_max_freq": "3000000", "cpuinfo_min_freq": "800000"}
    return {
        **groups,
        **cpus,
        **{f"{_POLICY}/{name}": text for name, text in frequency.items()},
        f"{_POLICY}/related_cpus": "0 1",
        f"{ROOT}/work/cpu.max": "max 100000",
        f"{ROOT}/work/cgroup.controllers": "cpu memory pids",
        f"{ROOT}/system.slice/cgroup.controllers": "cpu memory pids",
        f"{ROOT}/system.slice/cgroup.procs": "",
        _SWITCH: "memory pids",
        **{f"/proc/{pid}/status": f"Tgid:\t{pid}" for pid in _PIDS},
        "/proc/irq/9/smp_affinity_list": "0-1",
    }


def boot(kernel_texts: dict[str, str]) -> None:
    """What a reboot makes of them."""
    kernel_texts.pop(f"{GROUP}/cpu.max", None)
    kernel_texts |= texts()
    for pid in _PIDS:
        _put(kernel_texts, pid, "S")


def at_rest(kernel_texts: dict[str, str], known: dict[str, SimService]) -> bool:
    """Whether nothing is frozen, stopped, killed, throttled or offline."""
    as_ever = all(kernel_texts[path] == text for path, text in texts().items())
    awake = all(_state(kernel_texts, pid) == "S" for pid in _PIDS)
    return as_ever and awake and f"{GROUP}/cpu.max" not in kernel_texts and known[UNIT].active == "active"


def write(kernel_texts: dict[str, str], path: str, text: str) -> bool:
    """Do what the kernel does with a write to one of these files; False where it is none."""
    if path == f"{_CPUS}/cpu1/online":
        kernel_texts[path], kernel_texts[f"{_CPUS}/online"] = text, "0-1" if text == "1" else "0"
        return True
    if path != _SWITCH:
        return False
    words = set(kernel_texts[path].split())
    words = words | {text[1:]} if text[0] == "+" else words - {text[1:]}
    kernel_texts[path] = " ".join(sorted(words))
    if "cpu" not in words:
        kernel_texts.pop(f"{GROUP}/cpu.max", None)
    else:
        kernel_texts.setdefault(f"{GROUP}/cpu.max", "max 100000")
    return True


def _state(kernel_texts: dict[str, str], pid: int) -> str:
    return kernel_texts[f"/proc/{pid}/stat"].rpartition(")")[2].split()[0]


def _put(kernel_texts: dict[str, str], pid: int, state: str) -> None:
    head, _, tail = kernel_texts[f"/proc/{pid}/stat"].rpartition(")")
    kernel_texts[f"/proc/{pid}/stat"] = f"{head}) {state} {tail.split(maxsplit=1)[1]}"


def _start_anew(kernel_texts: dict[str, str], unit: SimService) -> None:
    """A new process, which has the number of the old one."""
    unit.active, unit.run = "active", unit.run + 1
    _put(kernel_texts, MAIN, "S")
    head, _, tail = kernel_texts[f"/proc/{MAIN}/stat"].rpartition(")")
    words = tail.split()
    words[19] = str(int(words[19]) + 1)
    kernel_texts[f"/proc/{MAIN}/stat"] = f"{head}) {' '.join(words)}"


class SimulatedServices:
    """`host.services` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def state(self, unit: str) -> UnitState:
        self._h.alive()
        one = self._h.kernel.services.get(unit)
        if one is None:
            return UnitState(unit, load="not-found", active="inactive")
        return UnitState(
            unit, load="loaded", active=one.active, invocation=f"run {one.run}",
            group="/system.slice/cron.service",
            result="success" if one.active == "active" else "signal", quota_us="infinity", period_us="infinity",
            main_pid=MAIN if one.active == "active" else 0,
        )  # fmt: skip

    def mark(self) -> str:
        return "s=1"

    def last_job(self, unit: str, mark: str) -> str:
        return ""

    def start(self, unit: str, *, forget: bool) -> None:
        self._h.change()
        one = self._h.kernel.services[unit]
        if one.active != "active":
            _start_anew(self._h.kernel.texts, one)

    def forget(self, unit: str) -> None:
        self._h.change()


class SimulatedProcesses:
    """`host.processes` of one agent. The main process of the unit takes the unit along."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def signal(self, pid: int, started: int, number: int) -> bool:
        self._h.change()
        found = self._h.kernel.texts.get(f"/proc/{pid}/stat")
        if found is None or int(found.rpartition(")")[2].split()[19]) != started:
            return False
        if _state(self._h.kernel.texts, pid) == "Z":
            return False
        _put(self._h.kernel.texts, pid, _HARMLESS.get(signal.Signals(number), "Z"))
        if _state(self._h.kernel.texts, pid) == "Z" and pid == MAIN:
            unit = self._h.kernel.services[UNIT]
            unit.active = "failed"
            if unit.spared:
                unit.spared = False
                _start_anew(self._h.kernel.texts, unit)
        return True

    def remaining(self, processes: Sequence[tuple[int, int]], within_s: float) -> Sequence[int]:
        self._h.alive()
        return [pid for pid, _ in processes if _state(self._h.kernel.texts, pid) != "Z"]

    def gather(self, folder: str, group: str) -> int:
        self._h.change()
        texts = self._h.kernel.texts
        pids = texts[f"{folder}/cgroup.procs"].split()
        moved = [pid for pid in pids if _state(texts, int(pid)) != "Z"]
        texts[f"{group}/cgroup.procs"] = texts.get(f"{group}/cgroup.procs", "") + "".join(
            f"{pid}\n" for pid in moved
        )
        texts.setdefault(f"{group}/cgroup.freeze", "0")
        texts[f"{folder}/cgroup.procs"] = ""
        return len(moved)

    def give_back(self, group: str, folder: str) -> None:
        self._h.change()
        texts = self._h.kernel.texts
        texts.pop(f"{group}/cgroup.freeze", None)
        texts[f"{folder}/cgroup.procs"] += texts.pop(f"{group}/cgroup.procs", "")

    def set_affinity(self, task: int, started: int, cpus: frozenset[int]) -> bool:
        self._h.change()
        if f"/proc/{task}/stat" not in self._h.kernel.texts:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return True
