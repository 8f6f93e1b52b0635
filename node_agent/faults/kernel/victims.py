"""Finding the processes that a fault is meant for, and refusing those that must not be victims. Only looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from node_agent.errors import Refusal
from node_agent.fault import PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps.task_flags import Process, TaskFlags

_KTHREADD = 2
NOT_COVERED = (
    "processes that the target's service manager starts later: they are not children of the target",
    "work the kernel does for the target in interrupts and kernel threads",
)


class Victims(Target):
    """Processes, each with its start time so that no later one is taken for it."""

    processes: tuple[Process, ...]
    what: str

    def describe(self) -> str:
        return self.what

    def flags(self) -> TaskFlags:
        """The step that makes them victims."""
        return TaskFlags(processes=self.processes)


@dataclass(frozen=True)
class _Seen:
    pid: int
    comm: str
    parent: int
    started: int


def _look(reader: Reader, pid: int) -> _Seen:
    """Fields of /proc/PID/stat (proc_pid_stat(5)). Raises OSError when it is gone."""
    head, _, tail = reader.read_text(f"/proc/{pid}/stat").rpartition(")")
    words = tail.split()
    return _Seen(pid, head.partition("(")[2], int(words[1]), int(words[19]))


def _everybody(reader: Reader) -> dict[int, _Seen]:
    found = {}
    for name in reader.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found[int(name)] = _look(reader, int(name))
    return found


def find_victims(reader: Reader, pid: int, unit: str) -> Victims:
    """The process with all its descendants, or the processes of a unit.

    Raises :class:`Refusal` where neither or both are given, nobody is there, or one of them is pid 1, a kernel
    thread, the agent or sshd.
    """
    if bool(pid) == bool(unit):
        raise Refusal("pid, unit: give one of them", field="pid", allowed="pid or unit: nothing fails globally")
    everybody = _everybody(reader)
    if pid:
        if pid not in everybody:
            raise Refusal(f"pid: there is no process {pid}", field="pid", allowed="a process that runs")
        chosen = _tree(everybody, pid)
        what = f"process {pid} ({everybody[pid].comm})"
    else:
        chosen = _of_unit(reader, unit, everybody)
        what = f"unit {unit}"
    _refuse_protected(reader, "pid" if pid else "unit", chosen)
    if len(chosen) > 1:
        what += f", {len(chosen)} processes"
    return Victims(processes=tuple(Process(pid=p.pid, started=p.started) for p in chosen), what=what)


def _tree(everybody: Mapping[int, _Seen], root: int) -> list[_Seen]:
    chosen, fresh = {root}, {root}
    while fresh:
        fresh = {p.pid for p in everybody.values() if p.parent in fresh} - chosen
        chosen |= fresh
    return [everybody[pid] for pid in sorted(chosen)]


def _of_unit(reader: Reader, unit: str, everybody: Mapping[int, _Seen]) -> list[_Seen]:
    name = unit if "." in unit else f"{unit}.service"
    patterns = (f"/sys/fs/cgroup/**/{name}/cgroup.procs", f"/sys/fs/cgroup/**/{name}/**/cgroup.procs")
    files = {path for pattern in patterns for path in reader.glob(pattern)}
    if not files:
        raise Refusal(f"unit: {name} does not run", field="unit", allowed="a unit with processes")
    pids = {int(word) for path in files for word in reader.read_text(path).split()}
    if not pids & everybody.keys():
        raise Refusal(f"unit: {name} has no processes", field="unit", allowed="a unit with processes")
    return [everybody[pid] for pid in sorted(pids & everybody.keys())]


def _refuse_protected(reader: Reader, field: str, chosen: Iterable[_Seen]) -> None:
    agent = _look_at_self(reader)
    for one in chosen:
        why = ""
        if one.pid == 1:
            why = "is pid 1"
        elif _KTHREADD in (one.pid, one.parent):
            why = "is a kernel thread"
        elif one.pid == agent:
            why = "is the agent"
        elif one.comm.startswith("sshd"):
            why = "is sshd"
        if why:
            raise Refusal(f"{field}: process {one.pid} ({one.comm}) {why}", field=field, allowed="another process")


def _look_at_self(reader: Reader) -> int:
    return int(reader.read_text("/proc/self/stat").split()[0])


def process_notes(facility: str, covers: tuple[str, ...], *warnings: str) -> PlanNotes:
    """Notes of a facility that knows its victims by their task flag."""
    return PlanNotes(backend=facility, covers=covers, not_covered=NOT_COVERED, warnings=warnings)
