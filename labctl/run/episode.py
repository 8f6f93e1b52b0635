"""The episode: gate, plant, solve, freeze, soak, challenge, judge, recover. One function holds the control flow.

Everything it touches is behind :class:`World`, so that the flow is tested without a lab, every way out of it too.
Recovery runs on each of them; what it leaves is in the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from labctl.errors import LabctlError
from labctl.run.diagnosis import Diagnosis, grade
from labctl.run.ledger import Line
from labctl.run.oracle import Lookout, Sight, Window, judge_all, look_all
from labctl.run.problem import Planted, Problem
from labctl.run.record import Stage
from labctl.run.verdict import Finding, Verdict


@dataclass(frozen=True)
class Timing:
    """How long the parts of an episode take, in seconds. A soak is at least one whole cycle of the load."""

    hold_s: float = 30.0
    soak_s: float = 60.0
    settle_s: float = 5.0
    poll_s: float = 0.5


class Load(Protocol):
    """The clients of the service."""

    def start(self) -> None: ...
    def now_s(self) -> float:
        """Seconds since it was started."""

    def lines(self) -> Sequence[Line]:
        """The ledger so far. Raises :class:`LabctlError` where somebody has changed it."""

    def stop(self) -> None: ...


class Solver(Protocol):
    """Whoever repairs."""

    def start(self) -> None: ...
    def diagnosis(self) -> Diagnosis | None:
        """The last one that was submitted."""

    def declared(self) -> bool:
        """Whether the repair was declared complete. Final."""

    def ended(self) -> bool:
        """Whether it has gone, declared or not."""

    def end(self) -> None:
        """Freeze it: its processes and sessions end. Twice is fine."""


class World(Protocol):
    """The lab and its clock."""

    @property
    def lab(self) -> Lookout: ...
    @property
    def load(self) -> Load: ...
    @property
    def solver(self) -> Solver: ...
    def now(self) -> float:
        """Seconds, by a clock that nobody steps."""

    def sleep(self, seconds: float) -> None: ...
    def plant(self, planted: Planted) -> str:
        """Plant a fault; its id. Raises :class:`LabctlError` where that does not succeed."""

    def hits(self, injection: str) -> int:
        """How often it has bitten since it stands, not counting the proof of the planting."""

    def end(self, injection: str) -> None:
        """Recover one injection. Over already is fine."""

    def challenge(self, node: str, script: str) -> None: ...
    def recover(self) -> tuple[str, ...]:
        """End everything of the episode, and say what is left on the nodes."""


class Diary(Protocol):
    """Where the episode writes as it goes: a record."""

    def stage(self, stage: Stage) -> None: ...
    def event(self, kind: str, **data: object) -> None: ...
    def sight(self, when: str, sight: Sight) -> None: ...


class Void(Exception):
    """Nothing can be said of the solver."""


def run_episode(problem: Problem, world: World, diary: Diary, timing: Timing = Timing()) -> Verdict:
    """One episode from beginning to end. Recovery runs on every way out, also by Ctrl-C."""
    episode = _Episode(problem, world, diary, timing)
    try:
        verdict = episode.through()
    except Void as void:
        verdict = episode.void(str(void))
    except LabctlError as error:
        verdict = episode.void(f"the lab broke: {error.message}")
    except KeyboardInterrupt:
        episode.over()
        raise
    left = episode.over()
    return verdict if not left else verdict.model_copy(update={"void": f"residue on the nodes: {'; '.join(left)}"})


class _Episode:
    """The stages, in order. What each found is handed to the next."""

    def __init__(self, problem: Problem, world: World, diary: Diary, timing: Timing) -> None:
        self.problem, self.world, self.diary, self.timing = problem, world, diary, timing
        self.declared = False
        self.looked_s = 0.0
        self.diagnosis: Diagnosis | None = None

    def through(self) -> Verdict:
        self.diary.stage("gate")
        before = self._gate()
        self.diary.stage("plant")
        began = self.world.now()
        for planted in sorted(self.problem.faults, key=lambda p: p.at_s):
            self.world.sleep(max(0.0, began + planted.at_s - self.world.now()))
            injection = self._plant(planted)
            self._first_hit(planted, injection)
            self._end_of_trigger(planted, injection)
        self.diary.stage("solve")
        self._solve()
        self.diary.stage("freeze")
        self.world.solver.end()
        self.diary.stage("soak")
        soaked = self._hold("soaked", before, self.timing.soak_s)
        self.diary.stage("challenge")
        self._challenge()
        lasting = self._hold("challenged", before, self.timing.hold_s)
        self.diary.stage("judge")
        graded = grade(self.diagnosis, self.problem.cause)
        return Verdict(findings=(*soaked, *lasts(lasting)), declared=self.declared, diagnosis=graded)

    def void(self, reason: str) -> Verdict:
        self.diary.event("void", reason=reason)
        return Verdict(declared=self.declared, void=reason, diagnosis=grade(self.diagnosis, self.problem.cause))

    def over(self) -> tuple[str, ...]:
        """End the solver, the faults and the load, each whatever became of the others; what is left."""
        self.diary.stage("recover")
        left = (*_tried(self.world.solver.end), *_tried(self.world.recover), *_tried(self.world.load.stop))
        for one in left:
            self.diary.event("residue", what=one)
        return left

    def _gate(self) -> Sight:
        """Healthy before anything is planted, under load, for the hold window; what the oracles saw then."""
        self.world.load.start()
        self.world.sleep(self.timing.settle_s)
        begin = self.world.load.now_s()
        self.world.sleep(self.timing.hold_s)
        before = self._look("before")
        bad = [f for f in judge_all(self.problem.oracles, before, before, self._window(begin)) if not f.passed]
        if bad:
            raise Void(f"the gate: {'; '.join(f'{f.oracle}: {r}' for f in bad for r in f.reasons)}")
        return before

    def _hold(self, when: str, before: Sight, seconds: float) -> tuple[Finding, ...]:
        """What the oracles say of a time from now on."""
        begin = self.world.load.now_s()
        self.world.sleep(seconds)
        return judge_all(self.problem.oracles, before, self._look(when), self._window(begin))

    def _look(self, when: str) -> Sight:
        self.looked_s = self.world.load.now_s()
        sight = look_all(self.problem.oracles, self.world.lab)
        self.diary.sight(when, sight)
        return sight

    def _window(self, begin_s: float) -> Window:
        load = self.world.load
        window = Window(begin_s=begin_s, end_s=load.now_s(), looked_s=self.looked_s, lines=tuple(load.lines()))
        self.diary.event("window", begin_s=window.begin_s, looked_s=window.looked_s, end_s=window.end_s)
        return window

    def _plant(self, planted: Planted) -> str:
        if planted.finds:
            try:
                planted = planted.found(self._printed(planted.node, planted.finds[1]))
            except ValueError as error:
                raise Void(f"{planted.node}: where to plant it makes no sense: {error}") from None
        if planted.first:
            self.world.challenge(planted.node, planted.first)
        injection = self.world.plant(planted)
        self.diary.event("planted", fault=planted.name, node=planted.node, injection=injection)
        if planted.then:
            self.world.challenge(planted.node, planted.then)
        return injection

    def _printed(self, node: str, script: str) -> str:
        done = self.world.lab.sh(node, script)
        if done.status or not done.stdout.strip():
            raise Void(f"{node}: where to plant it could not be found: {done.stderr.strip() or done.status}")
        return done.stdout.strip()

    def _bites(self, planted: Planted, injection: str) -> bool:
        if planted.shows:
            return self.world.lab.sh(planted.node, planted.shows).status == 0
        return self.world.hits(injection) > 0

    def _first_hit(self, planted: Planted, injection: str) -> None:
        if not self._until(lambda: self._bites(planted, injection), planted.bites_within_s):
            raise Void(f"{planted.name} on {planted.node} did not bite within {planted.bites_within_s:g} s")
        self.diary.event("bitten", injection=injection, hits=self.world.hits(injection))

    def _end_of_trigger(self, planted: Planted, injection: str) -> None:
        if planted.ends_after_s:
            self.world.sleep(planted.ends_after_s)
            self.world.end(injection)
            self.diary.event("ended", injection=injection)

    def _solve(self) -> None:
        solver = self.world.solver
        solver.start()
        over = self._until(lambda: solver.declared() or solver.ended(), self.problem.limit_s)
        self.declared, self.diagnosis = solver.declared(), solver.diagnosis()
        how = "declared" if self.declared else "ended" if over else "out of time"
        said = self.diagnosis.model_dump(mode="json") if self.diagnosis else None
        self.diary.event("solved", how=how, diagnosis=said)

    def _challenge(self) -> None:
        for node, script in self.problem.challenge:
            self.diary.event("challenge", node=node, script=script)
            self.world.challenge(node, script)
        if self.problem.trigger_again:
            for planted in self.problem.faults:
                if planted.ends_after_s:
                    self._end_of_trigger(planted, self._plant(planted))
        self.world.sleep(self.timing.settle_s)

    def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        deadline = self.world.now() + within_s
        while not holds():
            if self.world.now() >= deadline:
                return False
            self.world.sleep(self.timing.poll_s)
        return True


def lasts(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings after the challenge: whether the repair lasts. What was changed is judged before it, since the
    challenge changes things, too.
    """
    return tuple(
        f.model_copy(update={"oracle": f"{f.oracle} after the challenge", "aspect": "durability"})
        for f in findings
        if f.aspect != "scope"
    )


def _tried(end: Callable[[], Sequence[str] | None]) -> tuple[str, ...]:
    """Do it; what it says is left, or what went wrong, in words."""
    try:
        return tuple(end() or ())
    except LabctlError as error:
        return (error.message,)
