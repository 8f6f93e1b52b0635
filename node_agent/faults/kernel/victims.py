"""Finding the processes that a fault is meant for, and refusing those that must not be victims. Only looks."""

from __future__ import annotations

from collections.abc import Mapping

from node_agent.errors import Refusal
from node_agent.fault import PlanNotes, Target
from node_agent.host import Reader
from node_agent.members import Member, everybody, refuse_protected, tree_of
from node_agent.steps.task_flags import Process, TaskFlags

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


def find_victims(reader: Reader, pid: int, unit: str) -> Victims:
    """The process with all its descendants, or the processes of a unit.

    Raises :class:`Refusal` where neither or both are given, nobody is there, or one of them is pid 1, a kernel
    thread, the agent or sshd.
    """
    if bool(pid) == bool(unit):
        raise Refusal("pid, unit: give one of them", field="pid", allowed="pid or unit: nothing fails globally")
    known = everybody(reader)
    if pid:
        if pid not in known:
            raise Refusal(f"pid: there is no process {pid}", field="pid", allowed="a process that runs")
        chosen = tree_of(known, pid)
        what = f"process {pid} ({known[pid].comm})"
    else:
        chosen = _of_unit(reader, unit, known)
        what = f"unit {unit}"
    refuse_protected(reader, "pid" if pid else "unit", chosen)
    if len(chosen) > 1:
        what += f", {len(chosen)} processes"
    return Victims(processes=tuple(Process(pid=p.pid, started=p.started) for p in chosen), what=what)


def _of_unit(reader: Reader, unit: str, known: Mapping[int, Member]) -> list[Member]:
    name = unit if "." in unit else f"{unit}.service"
    patterns = (f"/sys/fs/cgroup/**/{name}/cgroup.procs", f"/sys/fs/cgroup/**/{name}/**/cgroup.procs")
    files = {path for pattern in patterns for path in reader.glob(pattern)}
    if not files:
        raise Refusal(f"unit: {name} does not run", field="unit", allowed="a unit with processes")
    pids = {int(word) for path in files for word in reader.read_text(path).split()}
    if not pids & known.keys():
        raise Refusal(f"unit: {name} has no processes", field="unit", allowed="a unit with processes")
    return [known[pid] for pid in sorted(pids & known.keys())]


def process_notes(facility: str, covers: tuple[str, ...], *warnings: str) -> PlanNotes:
    """Notes of a facility that knows its victims by their task flag."""
    return PlanNotes(backend=facility, covers=covers, not_covered=NOT_COVERED, warnings=warnings)
