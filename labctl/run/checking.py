"""What a problem proves about itself: that it can be passed, and only by repairing it.

Each claim is an episode, or what one shows by the way. Results are kept by the content of the problem and of what
judges it, so that a check goes on where it ended and a run again does only what changed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import LabError
from labctl.lab.files import locked, write_atomic
from labctl.run.judging import Gathered, verdict_of
from labctl.run.ledger import Line
from labctl.run.lookouts import LostNode, Remembered
from labctl.run.oracle import Lookout, Sight, look_all
from labctl.run.problem import Problem
from labctl.run.telling import names_in, on_paper
from labctl.run.verdict import FailureClass, Outcome, Verdict

Claim = str
"""papers, nothing, tells, reference, alternative, lost, decoy:1 …"""

Answer = Literal["yes", "no", "unknown"]
FEWEST_DECOYS = 3
_LOCK_S = 60.0

CLAIMS: Mapping[str, str] = {
    "papers": "statement, names and words give nothing away",
    "nothing": "doing nothing fails",
    "tells": "nothing that a solver can read while it stands names the fault",
    "reference": "the reference solution passes, with the right diagnosis",
    "alternative": "another right repair passes, too",
    "lost": "a node that nobody can reach gives UNKNOWN",
    "decoy": "a wrong repair fails, for its own reason",
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Found(_Value):
    """What became of one claim. `revision`: of the problem and what judges it."""

    claim: Claim
    answer: Answer
    why: str = ""
    revision: str
    catalogue: str
    when: dt.datetime
    took_s: float = Field(default=0.0, ge=0)
    record: str = ""


class Checked(_Value):
    """All results of one problem, by claim."""

    problem: str
    found: Mapping[Claim, Found] = {}

    def current(self, claim: Claim, revision: str) -> Found | None:
        """The result of a claim for this revision; None where there is none that counts."""
        one = self.found.get(claim)
        return one if one is not None and one.revision == revision and one.answer != "unknown" else None

    def put(self, *found: Found) -> Checked:
        """With these results."""
        return self.model_copy(update={"found": {**self.found, **{one.claim: one for one in found}}})


def claims_of(problem: Problem) -> tuple[Claim, ...]:
    """The claims of a problem, in the order in which they are checked: what says most comes first."""
    decoys = tuple(f"decoy:{number + 1}" for number in range(len(problem.decoys)))
    other = ("alternative",) if problem.alternative else ()
    return ("papers", "reference", "lost", "nothing", "tells", *other, *decoys)


TOGETHER: Mapping[Claim, Claim] = {"tells": "nothing", "lost": "reference"}
"""Claims that the episode of another one shows by the way."""


def papers(problem: Problem) -> tuple[Answer, str]:
    """What can be said without a lab."""
    wrong = list(on_paper(problem))
    if len(problem.decoys) < FEWEST_DECOYS:
        wrong.append(f"{len(problem.decoys)} decoys; give {FEWEST_DECOYS}")
    return ("no", "; ".join(wrong)) if wrong else ("yes", "")


def nothing(problem: Problem, verdict: Verdict) -> tuple[Answer, str]:
    """Whoever does nothing fails; and not only for saying nothing, where something is wrong."""
    if verdict.outcome is Outcome.UNKNOWN:
        return "unknown", _why(verdict)
    users = {verdict.of("outcome"), verdict.of("durability")}
    if problem.mode == "no_fault":
        return ("yes", "") if verdict.failure == "never_declared" else ("no", _why(verdict))
    return ("yes", "") if Outcome.FAIL in users else ("no", "the service is well while the fault stands")


def passes(verdict: Verdict) -> tuple[Answer, str]:
    """A right repair passes, with a diagnosis that is exact."""
    if verdict.outcome is Outcome.UNKNOWN:
        return "unknown", _why(verdict)
    if verdict.outcome is Outcome.FAIL:
        return "no", _why(verdict)
    return ("yes", "") if verdict.diagnosis == "exact" else ("no", f"its diagnosis is {verdict.diagnosis}")


def decoy(expected: FailureClass, verdict: Verdict) -> tuple[Answer, str]:
    """A wrong repair fails as its problem says."""
    if verdict.outcome is Outcome.UNKNOWN:
        return "unknown", _why(verdict)
    if verdict.outcome is Outcome.PASS:
        return "no", "it passes"
    if verdict.failure == expected or {verdict.failure, expected} == {"did_not_last", "out_of_bounds"}:
        return "yes", ""
    return "no", f"fails as {verdict.failure}, not as {expected}: {_why(verdict)}"


def tells(log: str) -> tuple[Answer, str]:
    """What the tools of a solver have shown."""
    if log.count("## ") < FEWEST_DECOYS:
        return "unknown", "the tools showed nothing"
    found = names_in(log)
    return ("no", f"the nodes say: {', '.join(found[:6])}") if found else ("yes", "")


def lost(problem: Problem, lab: Lookout, gathered: Gathered, lines: Sequence[Line]) -> tuple[Answer, str]:
    """What became of an episode that passed, had a node been lost when it was judged. Each node in turn, but for
    those that a problem takes away for good: nobody looks at them.
    """
    looked = 0
    remembered = Remembered(lab)
    look_all(problem.oracles, remembered)  # once for all that follow
    for node in lab.nodes:
        blind = look_all(problem.oracles, LostNode(remembered, node)).blind
        looked += bool(blind)
        if not blind:
            continue
        sights = {
            when: sight if when == "before" else _without(sight, blind) for when, sight in gathered.sights.items()
        }
        found = verdict_of(problem, gathered.model_copy(update={"sights": sights}), lines)
        if found.outcome is not Outcome.UNKNOWN:
            return "no", f"without {node} it is {found.outcome.value}"
    return ("yes", "") if looked else ("no", "no oracle looks at any node")


def _without(sight: Sight, blind: Mapping[str, str]) -> Sight:
    seen = {name: data for name, data in sight.seen.items() if name not in blind}
    return Sight(seen=seen, blind={**sight.blind, **blind})


def _why(verdict: Verdict) -> str:
    return "; ".join(verdict.reasons[:3]) or verdict.outcome.value


class Results:
    """The results of all problems, in one file, written after each claim."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Checked]:
        """Raises :class:`LabError` for a file that is damaged."""
        try:
            return _File.model_validate_json(self.path.read_bytes()).problems
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            first = str(error).splitlines()[0]
            raise LabError(f"{self.path} is damaged: {first}", "delete it, and check again") from None

    def put(self, problem: str, *found: Found) -> Checked:
        """Keep results of a problem; all it has now. Checks on several labs may share a file."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        with locked(lock, self.path.name, _LOCK_S, lambda text: None):
            known = self.read()
            mine = known.get(problem, Checked(problem=problem)).put(*found)
            file = _File(problems=dict(sorted({**known, problem: mine}.items())))
            write_atomic(self.path, file.model_dump_json(indent=1).encode() + b"\n", 0o644)
        return mine


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    problems: dict[str, Checked] = {}


def wanted(
    problem: Problem, known: Checked, revision: str, only: Sequence[Claim], again: bool
) -> tuple[Claim, ...]:
    """The claims that are to be checked now. `only`: of these kinds."""
    return tuple(
        claim
        for claim in claims_of(problem)
        if (not only or claim in only or claim.partition(":")[0] in only)
        and (again or known.current(claim, revision) is None)
    )
