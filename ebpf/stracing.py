"""The last resort as a target: calls that no hook of this kernel reaches, tampered with by strace."""

from __future__ import annotations

from contextlib import suppress

from ebpf.calls import NUMBERS
from ebpf.coverage import BEYOND, covered, not_covered
from ebpf.operations import FAMILIES
from ebpf.strace import NOT_COVERED, WARNINGS, CannotDoError, Tampering, when_words
from ebpf.strace_helper import strace_evidence, strace_step
from node_agent.errors import Refusal, UnsupportedError
from node_agent.fault import Evidence, Facts, PlanNotes, Target
from node_agent.host import Reader
from node_agent.rules import Scope
from node_agent.schedule import ScheduleValue
from node_agent.scopes import ScopeFields, cgroup_root, find_scope
from node_agent.steps import Step


class StraceTarget(Target):
    """Processes that run now, and what strace does to their calls."""

    what: str
    scope: Scope
    pids: tuple[int, ...]
    calls: tuple[str, ...]
    family: str = ""
    error: str = ""
    delay_us: int = 0
    signal: str = ""
    schedule: ScheduleValue = ScheduleValue()

    def describe(self) -> str:
        return f"{self.what} of {self.scope.name}, {len(self.pids)} processes"

    @property
    def tampering(self) -> Tampering:
        """What strace is told to do."""
        return Tampering(calls=self.calls, error=self.error, delay_us=self.delay_us, signal=self.signal)


def strace_place(
    reader: Reader, facts: Facts, *, operation: str, scope: ScopeFields, schedule: ScheduleValue, budget: int,
    what: str, error: str = "", delay_us: int = 0, signal: str = "",
) -> StraceTarget:  # fmt: skip
    """The processes of a scope as they are now. Raises :class:`Refusal` for what strace cannot do."""
    missing = facts.missing("strace")
    if missing:
        raise UnsupportedError(missing[0].reason, allowed=missing[0].remedy)
    family = FAMILIES.get(operation)
    if family is None and operation not in NUMBERS:
        raise Refusal(
            f"operation: {operation!r} is no system call",
            field="operation",
            allowed="a call, or a family of calls",
        )
    if budget:
        raise Refusal("budget: strace has none", field="budget", allowed="schedule first:N, or another backend")
    try:
        when_words(schedule)
    except CannotDoError as error_:
        raise Refusal(f"schedule: {error_}", field="schedule", allowed="always, every, after, first") from None
    found = find_scope(reader, facts, scope)
    pids = processes_of(reader, facts, found)
    if not pids:
        raise Refusal(
            f"{found.name} has no processes, and strace needs some to attach to", field=found.kind,
            allowed="a scope that runs, or an operation that a hook of the kernel reaches",
        )  # fmt: skip
    return StraceTarget(
        what=what, scope=found, pids=pids, calls=family.calls if family else (operation,),
        family=family.name if family else "", error=error, delay_us=delay_us, signal=signal, schedule=schedule,
    )  # fmt: skip


def processes_of(reader: Reader, facts: Facts, scope: Scope) -> tuple[int, ...]:
    """The processes of a scope just now. Of a tree the root alone: strace follows what it starts."""
    if scope.pid:
        return (scope.pid,)
    root = cgroup_root(facts)
    below: list[str] = []
    for path in (scope.cgroup, *scope.also):
        below += [f"{root}{path}/cgroup.procs", *reader.glob(f"{root}{path}/**/cgroup.procs")]
    pids: set[int] = set()
    for path in set(below):
        with suppress(OSError):
            pids |= {int(word) for word in reader.read_text(path).split()}
    return tuple(sorted(pids))


def strace_steps(target: StraceTarget, tag: str) -> tuple[Step, ...]:
    """The one step of a fault done by strace."""
    return (strace_step(tag, target.pids, target.tampering, target.schedule),)


def strace_notes(target: StraceTarget) -> PlanNotes:
    """What the plan says: never silently the slow way."""
    family = target.family
    covers = covered(family, "strace") if family else target.calls
    missed = not_covered(family, "strace") if family else ()
    beyond = (BEYOND[family],) if family in BEYOND else ()
    return PlanNotes(
        backend="strace", covers=covers, not_covered=(*missed, *NOT_COVERED), warnings=(*beyond, *WARNINGS)
    )


def strace_proof(reader: Reader, tag: str) -> Evidence:
    """Counters of the running strace; not armed where it has ended."""
    try:
        return strace_evidence(reader, tag)
    except OSError as error:
        return Evidence(armed=False, hits=0, notes=(f"strace is gone: {error}",))
