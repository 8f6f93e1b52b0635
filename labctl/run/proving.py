"""Running what a problem claims of itself on a lab: `labctl check`."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from labctl.errors import LabError
from labctl.run import checking as the
from labctl.run.catalogue import Catalogue
from labctl.run.checking import Answer, Claim, Found
from labctl.run.diary import gathered_of
from labctl.run.episode import Early, Shortcut, Timing
from labctl.run.gates import Gates
from labctl.run.oracle import look_for
from labctl.run.perform import LOG, Request, Site, perform
from labctl.run.problem import Problem, Script
from labctl.run.record import read_record
from labctl.run.shells import Shells
from labctl.run.telling import reader
from labctl.run.verdict import Aspect, FailureClass, Outcome, Verdict

CHECK_TIMING = Timing(hold_s=20.0, soak_s=45.0, settle_s=5.0, stays_s=20.0)
"""Shorter holds than a run has, but a soak of a whole cycle of the load."""

TRIES = 2
"""A claim of which nothing is known is tried so often: machines that are busy break a gate now and then."""

INTERRUPTED = "interrupted"
"""What an episode says that somebody ended: it has recovered, and nothing else is to be checked."""

SEED = 4

AGAIN_S, SOON_S = 10.0, 10.0
"""How long the service has to hold at a gate that was passed before; how long after a wrong repair that changed
what it must not, or left the cause, it is looked at. Seconds.
"""

USERS: tuple[Aspect, ...] = ("objective", "durability")
FIRST: tuple[Aspect, ...] = ("scope", "cause", *USERS)
"""What decides how a wrong repair fails: the first match of the failure classes; only damage comes after."""


@dataclass
class Prover:
    """Checks claims of problems on one lab. `records` is where the records of the last try of each claim go."""

    site: Site
    problems: Catalogue
    records: Path
    timing: Timing = field(default_factory=lambda: CHECK_TIMING)
    seed: int = SEED
    tell: Callable[[str, dict[str, object]], None] = lambda kind, data: None
    gates: Gates = field(default_factory=Gates)

    def check(self, name: str, claims: Sequence[Claim]) -> Iterator[Found]:
        """The results of these claims of a problem, each as soon as it is known."""
        problem = self.problems.find(name)
        left = list(claims)
        while left:
            claim = left.pop(0)
            by_the_way = [one for one in left if the.TOGETHER.get(one) == claim]
            first = the.TOGETHER.get(claim)  # asked for alone: its episode has to be run all the same
            for found in self._check(problem, first or claim, (claim, *by_the_way)):
                if found.claim in (claim, *by_the_way):
                    yield found
            left = [one for one in left if one not in by_the_way]

    def _check(self, problem: Problem, episode: Claim, claims: Sequence[Claim]) -> list[Found]:
        if episode == "papers":
            return [self._found(problem, episode, the.papers(problem), 0.0, None)]
        answers: dict[Claim, tuple[Answer, str]] = {}
        took: dict[Claim, float] = {}
        path = self.records / problem.name / episode.replace(":", "-")
        for _ in range(TRIES):
            shutil.rmtree(path, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            since = time.monotonic()
            verdict = self._run(problem, episode, path)
            for claim, ask in self._questions(problem, episode, verdict, path).items():
                if claim == episode or claim in claims:
                    answers[claim] = ask()
                    now = time.monotonic()
                    took[claim] = took.get(claim, 0.0) + now - since
                    since = now
            if all(answer != "unknown" for answer, _ in answers.values()):
                break
        return [self._found(problem, claim, answer, took[claim], path) for claim, answer in answers.items()]

    def _run(self, problem: Problem, episode: Claim, path: Path) -> Verdict:
        looking = episode == "nothing"
        script: Script | None = reader(self._nodes()) if looking else None
        request = Request(
            problem=problem, solver="none" if looking else episode, seed=self.seed, record=path,
            catalogue=str(self.problems), timing=self.timing, script=script,
            shortcut=Shortcut(
                at_gate=self.gates.look, gate_s=AGAIN_S if self.gates.known else None,
                early=self._early(problem, episode),
            ),
        )  # fmt: skip
        verdict = perform(request, self.site, self.tell)
        if verdict.void == INTERRUPTED:
            raise KeyboardInterrupt
        if verdict.void:
            self.gates.forget()
        return verdict

    def _early(self, problem: Problem, episode: Claim) -> Early | None:
        """A wrong repair may fail early; a right one has to be judged to the end."""
        if episode in ("reference", "alternative"):
            return None
        aspects, hold_s = USERS, self.timing.hold_s
        if fails_as := _fails_as(problem, episode):
            aspects = (*FIRST, "integrity") if fails_as == "integrity" else FIRST
            hold_s = SOON_S if fails_as in ("off_the_permitted_list", "cause_left") else hold_s
        return Early(
            enough=lambda verdict: self._answer(problem, episode, verdict)[0] == "yes",
            hold_s=hold_s, look=partial(look_for, aspects),
        )  # fmt: skip

    def _questions(
        self, problem: Problem, episode: Claim, verdict: Verdict, path: Path
    ) -> dict[Claim, Callable[[], tuple[Answer, str]]]:
        """What an episode says of its own claim, and of those that it shows by the way."""
        found: dict[Claim, Callable[[], tuple[Answer, str]]] = {
            episode: lambda: self._answer(problem, episode, verdict)
        }
        if episode == "nothing":
            log = path / "artifacts" / LOG
            found["tells"] = lambda: the.tells(log.read_text(errors="replace") if log.exists() else "")
        if episode == "reference":
            found["lost"] = lambda: self._lost(problem, verdict, path)
        return found

    @staticmethod
    def _answer(problem: Problem, episode: Claim, verdict: Verdict) -> tuple[Answer, str]:
        if fails_as := _fails_as(problem, episode):
            return the.decoy(fails_as, verdict)
        return the.nothing(problem, verdict) if episode == "nothing" else the.passes(verdict)

    def _lost(self, problem: Problem, verdict: Verdict, path: Path) -> tuple[Answer, str]:
        if verdict.outcome is not Outcome.PASS:
            return "unknown", "the reference has to pass first"
        gathered, lines = gathered_of(read_record(path))
        lab = Shells(self.site.nodes)
        try:
            return the.lost(problem, lab, gathered, lines)
        finally:
            lab.close()

    def _nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.site.nodes())

    def _found(
        self, problem: Problem, claim: Claim, said: tuple[Answer, str], took_s: float, path: Path | None
    ) -> Found:
        answer, why = said
        return Found(
            claim=claim, answer=answer, why=why[:600], revision=self.problems.revision_of(problem.name),
            catalogue=str(self.problems), when=dt.datetime.now(dt.UTC).replace(microsecond=0),
            took_s=round(took_s, 1), record=path.name if path else "",
        )  # fmt: skip


def _fails_as(problem: Problem, episode: Claim) -> FailureClass | None:
    """How the decoy of an episode has to fail; None for an episode of no decoy."""
    kind, _, number = episode.partition(":")
    return problem.decoys[int(number) - 1].fails_as if kind == "decoy" else None


def pick(problems: Catalogue, count: int, seed: int) -> tuple[str, ...]:
    """So many problems, in turn: another `seed`, such as the day, gives the next ones."""
    names = list(problems.problems)
    if not names:
        raise LabError("there are no problems")
    start = (seed * count) % len(names)
    return tuple(dict.fromkeys(names[(start + n) % len(names)] for n in range(count)))
