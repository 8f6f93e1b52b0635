"""What the faults of the rule table share: from parameters to a rule on this node, its plan and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from ebpf.calls import DESCRIPTOR_FIRST, NUMBERS, function_of, operation_of
from ebpf.coverage import BEYOND, by_kind, by_sockets, covered, not_covered
from ebpf.operations import FAMILIES, ONLY_FUNCTION, Family, operation_name
from node_agent import errnos
from node_agent.errors import Refusal, UnsupportedError
from node_agent.fault import Evidence, Facts, Hit, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.rules import Flavour, Hook, Match, Rule
from node_agent.schedule import Schedule, ScheduleValue
from node_agent.scopes import ScopeFields, find_scope
from node_agent.steps import Step
from node_agent.steps.bpf_rule import BpfRule

SECURITY: tuple[Flavour, ...] = ("lsm", "fmod_ret")
SOCKETS: tuple[Flavour, ...] = ("cgroup",)
OVERRIDE: tuple[Flavour, ...] = ("override_fmod_ret", "override_kprobe")


class RuleTarget(Target):
    """Where a rule lands: the rule itself, found by looking, and what the plan says of it."""

    rule: Rule
    what: str
    backend: str
    covers: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def describe(self) -> str:
        return f"{self.what} of {self.rule.scope.name}"


@dataclass(frozen=True)
class Reach:
    """How an operation is reached on this node."""

    operation: int
    hooks: tuple[Hook, ...]
    match: Mapping[str, int]
    covers: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...] = ()


_Attempt = Callable[[Reader, Facts, str, frozenset[str], list[str]], "Reach | None"]


def reach(reader: Reader, facts: Facts, operation: str, asked: frozenset[str], only: str = "auto") -> Reach:
    """The hooks that see an operation: security hooks first, then those of sockets, then an override of each call.

    `asked` are the predicates that will be used; `only` narrows to "security", "sockets" or "override". Raises
    :class:`Refusal` for a word that is no operation or a predicate that cannot be answered, and
    :class:`UnsupportedError` where no backend of this node reaches it, saying which would.
    """
    family = FAMILIES.get(operation)
    why: list[str] = []
    attempts: tuple[tuple[str, _Attempt], ...] = (
        ("security", _security), ("sockets", _sockets), ("override", _override),
    )  # fmt: skip
    for backend, attempt in attempts if family else reversed(attempts):
        if only not in ("auto", backend):
            continue
        found = attempt(reader, facts, operation, asked, why)
        if found:
            return found
    raise UnsupportedError(f"operation {operation}: {'; '.join(why)}", allowed=_remedy(operation))


def _remedy(operation: str) -> str:
    return (
        f"syscall_error --backend strace for {operation} of running processes; "
        "or a kernel with BPF_KPROBE_OVERRIDE (labctl up --kernel lab)"
    )


def _security(reader: Reader, facts: Facts, operation: str, asked: frozenset[str], why: list[str]) -> Reach | None:
    """By security hooks: a whole family, or one call of it, known by the number it entered the kernel with."""
    family = FAMILIES.get(operation) or next(
        (f for f in FAMILIES.values() if operation in f.calls and f.hooks), None
    )
    if family is None or not family.hooks:
        why.append(f"no security hook of the kernel sees {operation}")
        return None
    _refuse_unanswerable(family, asked)
    hooks: list[Hook] = []
    for name in family.hooks:
        hook = _security_hook(reader, facts, name, why)
        if hook is None:
            return None
        hooks.append(hook)
    found = (_security_hook(reader, facts, name, []) for name in family.also)
    hooks.extend(hook for hook in found if hook)
    single = operation not in FAMILIES
    return Reach(
        family.number, tuple(hooks), {"call": NUMBERS[operation]} if single else {},
        (operation,) if single else covered(family.name, "security"),
        () if single else not_covered(family.name, "security"),
    )  # fmt: skip


def _refuse_unanswerable(family: Family, asked: frozenset[str]) -> None:
    for predicate in sorted(asked - family.asks):
        field = {"kinds": "kind", "min_size": "min_size_bytes"}.get(predicate, predicate)
        can = ", ".join(sorted(f.name for f in FAMILIES.values() if predicate in f.asks))
        raise Refusal(f"{field}: cannot be asked of {family.name}", field=field, allowed=f"operations {can}")


def _security_hook(reader: Reader, facts: Facts, name: str, why: list[str]) -> Hook | None:
    for flavour in SECURITY:
        if (name in ONLY_FUNCTION and flavour != "fmod_ret") or not facts.can(f"bpf.{flavour}"):
            continue
        hook = Hook(name=name, flavour=flavour)
        refusal = reader.bpf.refusal(hook)
        if not refusal:
            return hook
        why.append(refusal)
    why.extend(m.reason for m in facts.missing("bpf.lsm", "bpf.fmod_ret"))
    return None


def _sockets(reader: Reader, facts: Facts, operation: str, asked: frozenset[str], why: list[str]) -> Reach | None:
    """By the socket hooks of control groups: for kernels whose security hooks cannot be reached."""
    family = FAMILIES.get(operation)
    if family is None or not family.sockets:
        return None
    _refuse_unanswerable(family, asked)
    missing = facts.missing("bpf.cgroup")
    hooks = tuple(Hook(name=name, flavour="cgroup") for name in family.sockets)
    refusals = [m.reason for m in missing] or [r for r in map(reader.bpf.refusal, hooks) if r]
    if refusals:
        why.extend(refusals)
        return None
    return Reach(family.number, hooks, {}, *by_sockets(family.name))


def _override(reader: Reader, facts: Facts, operation: str, asked: frozenset[str], why: list[str]) -> Reach | None:
    """By overriding each system call itself, where the kernel allows it."""
    family = FAMILIES.get(operation)
    try:
        number = family.number if family else operation_of(operation)
    except ValueError as error:
        raise Refusal(
            f"operation: {error}", field="operation", allowed=f"a system call, or one of {', '.join(FAMILIES)}"
        ) from None
    flavours = [f for f in OVERRIDE if facts.can(f"bpf.{f}")]
    if not flavours:
        why.extend(f"no override of calls: {m.reason}" for m in facts.missing("bpf.override_fmod_ret"))
        return None
    calls = family.calls if family else (operation,)
    unanswered = asked - {"kinds", "device", "path", "open_flags"}
    if unanswered or (asked and not all(call in DESCRIPTOR_FIRST for call in calls)):
        lacking = sorted(unanswered or asked)[0]
        why.append(f"{lacking} cannot be asked where a call itself is overridden")
        return None
    hooks, refused = [], []
    for call in calls:
        words: list[str] = []
        hook = _override_hook(reader, flavours, call, number, words)
        if hook:
            hooks.append(hook)
        else:
            refused.append(f"{call}: {'; '.join(words)}")
    if not hooks:
        why.extend(refused)
        return None
    if family is None:
        return Reach(number, tuple(hooks), {}, (operation,), ())
    return Reach(
        number, tuple(hooks), {}, covered(family.name, "override"),
        (*not_covered(family.name, "override"), *(f"whatever calls {one}" for one in refused)),
        (BEYOND[family.name],) if family.name in BEYOND else (),
    )  # fmt: skip


def _override_hook(
    reader: Reader, flavours: Sequence[Flavour], call: str, operation: int, why: list[str]
) -> Hook | None:
    for flavour in flavours:
        hook = Hook(
            name=function_of(call), flavour=flavour, operation=operation, has_descriptor=call in DESCRIPTOR_FIRST
        )
        refusal = reader.bpf.refusal(hook)
        if not refusal:
            return hook
        why.append(refusal)
    return None


def asked_of(match: Match) -> frozenset[str]:
    """The predicates that a match uses."""
    used = {
        "kinds": match.kinds, "device": match.device is not None, "path": match.roots,
        "open_flags": match.open_flags, "address": match.address, "port": match.port is not None,
        "family": match.family is not None, "min_size": match.min_size,
    }  # fmt: skip
    return frozenset(name for name, is_used in used.items() if is_used)


def place(
    reader: Reader, facts: Facts, *, fault: RuleFault, seed: int, operations: Sequence[str], what: str,
    match: Match, errno: str = "", signal: int = 0, only: str = "auto", call: str = "",
) -> RuleTarget:  # fmt: skip
    """The rule that a fault means on this node; `call` narrows a family to one way into it.

    Raises what :func:`reach` and :func:`node_agent.scopes.find_scope` raise.
    """
    found = find_scope(reader, facts, fault)
    reached = [reach(reader, facts, operation, asked_of(match), only) for operation in operations]
    narrowed = match.model_copy(update={"call": NUMBERS[call]} if call else dict(reached[0].match))
    hooks = tuple(dict.fromkeys(h for one in reached for h in one.hooks))
    rule = Rule(
        operations=tuple(dict.fromkeys(r.operation for r in reached)), hooks=hooks, scope=found, match=narrowed,
        errno=errnos.number(errno) if errno else 0, signal=signal, schedule=fault.schedule, seed=seed,
        budget=fault.budget,
    )  # fmt: skip
    covers, missed = _coverage(operations, reached, narrowed, call)
    return RuleTarget(
        rule=rule, what=what, backend=", ".join(dict.fromkeys(f"bpf {h.flavour}" for h in hooks)),
        covers=covers, not_covered=missed, warnings=tuple(dict.fromkeys(w for r in reached for w in r.warnings)),
    )  # fmt: skip


def _coverage(
    operations: Sequence[str], reached: Sequence[Reach], match: Match, call: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The entry points that a rule covers, each once, and those that it does not."""
    if call:
        return (call,), ()
    covers: list[str] = []
    missed: list[str] = []
    for operation, one in zip(operations, reached, strict=True):
        fit, other = by_kind(operation, one.covers, match.kinds)
        covers.extend(fit)
        missed.extend((*one.not_covered, *other))
    return tuple(dict.fromkeys(covers)), tuple(dict.fromkeys(c for c in missed if c not in covers))


def rule_evidence(reader: Reader, rule: Rule, tag: str) -> Evidence:
    """What the kernel says of a rule."""
    state = reader.bpf.state(tag)
    if state is None:
        return Evidence(armed=False, hits=0, notes=("the rule is not in the kernel",))
    notes = [f"not attached any more: {hook}" for hook in state.missing]
    if not state.members:
        notes.append(f"{rule.scope.name} has no processes just now: armed, and waits")
    answer = errnos.name(rule.errno) if rule.errno else f"signal {rule.signal}"
    samples = tuple(
        Hit(sequence=s.sequence, time_us=s.time_us, pid=s.pid, tid=s.tid, comm=s.comm,
            call=operation_name(s.operation), where=s.where, answer=answer)
        for s in reader.bpf.samples(tag)
    )  # fmt: skip
    return Evidence(
        armed=state.attached, hits=state.counters["injected"], counters=dict(state.counters), notes=tuple(notes),
        samples=samples,
    )  # fmt: skip


class RuleFault(ScopeFields):
    """The half of a fault that every line of the rule table shares; the other half is `Fault` and a `locate`."""

    schedule: Schedule = Field(default=ScheduleValue(), description="which of the calls; times in seconds")
    budget: int = Field(default=0, ge=0, lt=2**63, description="most hits; 0: no limit")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        """What is missing where no backend of rules works at all."""
        if any(facts.can(f"bpf.{flavour}") for flavour in (*SECURITY, *SOCKETS, *OVERRIDE)):
            return ()
        return facts.missing("bpf.lsm")

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        """The one step: the rule."""
        assert isinstance(target, RuleTarget)
        return (BpfRule(tag=tag, rule=target.rule),)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        """Backend and coverage, found by :func:`place`."""
        assert isinstance(target, RuleTarget)
        return PlanNotes(
            backend=target.backend, covers=target.covers, not_covered=target.not_covered, warnings=target.warnings
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        """Armed: the rule is in the table, every hook attached. Hits: injected, counted in the kernel."""
        assert isinstance(target, RuleTarget)
        return rule_evidence(reader, target.rule, tag)
