"""From what an episode gathered to its verdict. Pure, and the same for a running episode and for its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from labctl.run.diagnosis import Diagnosis, grade
from labctl.run.ledger import Line
from labctl.run.oracle import Sight, Window, judge_all
from labctl.run.problem import Problem
from labctl.run.verdict import Aspect, Finding, Outcome, Verdict

When = Literal["before", "soaked", "challenged"]
"""At the gate; at the end of the soak; after the challenge."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Span(_Value):
    """A window of an episode, in seconds since the start of the load.

    Clients have to be served as promised from `begin_s` to `first_s`, or the repair was declared too early, and
    from then to `end_s`, or it did not last. The oracles began to look at `looked_s`.
    """

    begin_s: float
    first_s: float
    looked_s: float
    end_s: float


class Biting(_Value):
    """A planted fault over the soak and the challenge: its hits before and after; None where nobody could see."""

    fault: str
    node: str
    may_stay: bool
    before: int | None
    after: int | None


class Tampering(_Value):
    """What somebody did to the measuring itself."""

    aspect: Aspect
    reason: str


class Gathered(_Value):
    """All of an episode that a verdict is made of, but for the ledger. `void`: why nothing can be said."""

    sights: Mapping[When, Sight] = {}
    spans: Mapping[When, Span] = {}
    biting: tuple[Biting, ...] = ()
    tampering: tuple[Tampering, ...] = ()
    declared: bool = False
    diagnosis: Diagnosis | None = None
    void: str = ""


def gate_of(problem: Problem, gathered: Gathered, lines: Sequence[Line]) -> str:
    """Why the service was not healthy before anything was planted; empty where it was."""
    found = judge_all(problem.oracles, *_sights(gathered, "before"), _window(gathered.spans["before"], lines))
    bad = [f"{f.oracle}: {reason}" for f in found if not f.passed for reason in f.reasons or ("no reason given",)]
    return f"the gate: {'; '.join(bad)}" if bad else ""


def verdict_of(problem: Problem, gathered: Gathered, lines: Sequence[Line]) -> Verdict:
    """The verdict of an episode that came to its end, or void. Without a challenge it can only have failed."""
    graded = grade(gathered.diagnosis, problem.cause)
    if gathered.void:
        return Verdict(declared=gathered.declared, void=gathered.void, diagnosis=graded)
    findings = (
        *_soaked(problem, gathered, lines),
        *(_still(one) for one in gathered.biting if not one.may_stay),
        *(_lasting(problem, gathered, lines) if "challenged" in gathered.spans else ()),
        *(_tampered(one) for one in gathered.tampering),
    )
    verdict = Verdict(findings=findings, declared=gathered.declared, diagnosis=graded)
    if "challenged" not in gathered.spans and verdict.outcome is not Outcome.FAIL:
        return Verdict(declared=gathered.declared, void="it was not judged to its end", diagnosis=graded)
    return verdict


def _soaked(problem: Problem, gathered: Gathered, lines: Sequence[Line]) -> tuple[Finding, ...]:
    """What holds after the freeze, and whether users are served through the whole soak."""
    span, sights = gathered.spans["soaked"], _sights(gathered, "soaked")
    objectives = [oracle for oracle in problem.oracles if oracle.aspect == "objective"]
    early = span.model_copy(update={"looked_s": span.first_s, "end_s": span.first_s})
    first = judge_all(objectives, *sights, _window(early, lines))
    whole = judge_all(problem.oracles, *sights, _window(span, lines))
    at_first = {finding.oracle: finding for finding in first}
    through = (_as_durability(f, "through the soak") for f in whole if f.oracle in at_first)
    return (*(at_first.get(f.oracle, f) for f in whole), *through)


def _lasting(problem: Problem, gathered: Gathered, lines: Sequence[Line]) -> tuple[Finding, ...]:
    """The findings after the challenge: whether the repair lasts. What was changed is judged before it, since the
    challenge changes things, too.
    """
    found = judge_all(
        problem.oracles, *_sights(gathered, "challenged"), _window(gathered.spans["challenged"], lines)
    )
    return tuple(_as_durability(f, "after the challenge") for f in found if f.aspect != "scope")


def _as_durability(finding: Finding, when: str) -> Finding:
    return finding.model_copy(update={"oracle": f"{finding.oracle} {when}", "aspect": "durability"})


def _sights(gathered: Gathered, when: When) -> tuple[Sight, Sight]:
    return gathered.sights["before"], gathered.sights[when]


def _window(span: Span, lines: Sequence[Line]) -> Window:
    return Window(begin_s=span.begin_s, looked_s=span.looked_s, end_s=span.end_s, lines=tuple(lines))


def _still(one: Biting) -> Finding:
    """Whether a planted fault still bites after the repair."""
    name, measures = f"{one.fault} on {one.node}", {"hits_before": one.before, "hits_after": one.after}
    known = {key: value for key, value in measures.items() if value is not None}
    outcome: Outcome = Outcome.PASS
    reasons: tuple[str, ...] = ()
    if one.before is None or one.after is None:
        outcome, reasons = Outcome.UNKNOWN, ("nobody can tell whether it still bites",)
    elif one.after > one.before:
        outcome, reasons = Outcome.FAIL, (f"it still bites: {one.after - one.before} times after the repair",)
    return Finding(oracle=name, aspect="cause", outcome=outcome, reasons=reasons, measures=known)


def _tampered(one: Tampering) -> Finding:
    return Finding(oracle="measuring", aspect=one.aspect, outcome=Outcome.FAIL, reasons=(one.reason,))
