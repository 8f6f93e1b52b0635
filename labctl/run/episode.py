"""The episode: prepare, gate, plant, solve, freeze, soak, challenge, judge, recover. One function holds the flow.

Everything it touches is behind :class:`World`, so that the flow is tested without a lab, every way out of it too.
Recovery runs on each of them; what it leaves is in the verdict. What it gathers is judged by
:mod:`labctl.run.judging`, which can do so again from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from labctl.errors import LabctlError
from labctl.run.diagnosis import Diagnosis
from labctl.run.judging import Biting, Gathered, Span, Tampering, When, gate_of, verdict_of
from labctl.run.ledger import Line
from labctl.run.oracle import Lookout, Oracle, Sight, Window, judge_all, look_all
from labctl.run.problem import Planted, Problem
from labctl.run.record import Stage
from labctl.run.verdict import Outcome, Verdict


@dataclass(frozen=True)
class Timing:
    """How long the parts of an episode take, in seconds. A soak is at least one whole cycle of the load.

    `stays_s`: how long a metastable failure is watched after its trigger is gone, before anybody may repair.
    """

    hold_s: float = 30.0
    soak_s: float = 60.0
    settle_s: float = 5.0
    stays_s: float = 20.0
    poll_s: float = 0.5

    def holding(self, hold_s: float | None, soak_s: float | None) -> Timing:
        """The same with what was given in it, in seconds."""
        given = {"hold_s": hold_s, "soak_s": soak_s}
        return replace(self, **{name: value for name, value in given.items() if value is not None})


class Load(Protocol):
    """The clients of the service."""

    @property
    def patience_s(self) -> float:
        """After this long every request has ended, one way or the other."""

    def start(self) -> None: ...
    def now_s(self) -> float:
        """Seconds since it was started."""

    def lines(self) -> Sequence[Line]:
        """The ledger so far, as it was written. Raises :class:`LabctlError` where the generator is broken."""

    def tampering(self) -> Sequence[Tampering]:
        """What somebody did to the ledger or to the load itself."""

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
    def prepare(self) -> None:
        """Take the lab to where every episode begins."""

    def disturb(self, on: bool) -> None:
        """Noise begins, or ends at once and leaves nothing. Twice is fine."""

    def plant(self, planted: Planted) -> str:
        """Plant a fault; its id. Raises :class:`LabctlError` where that does not succeed."""

    def hits(self, injection: str) -> int:
        """How often it has bitten since it stands, not counting the proof of the planting."""

    def end(self, injection: str) -> None:
        """Recover one injection. Over already is fine."""

    def challenge(self, node: str, script: str) -> None:
        """Run a script as root on a node, or an action for the node "hardware"."""

    def recover(self) -> tuple[str, ...]:
        """End everything of the episode, and say what is left on the nodes."""


class Diary(Protocol):
    """Where the episode writes as it goes: a record. All raise :class:`LabctlError` where there is no room."""

    def stage(self, stage: Stage) -> None: ...
    def event(self, kind: str, **data: object) -> None: ...
    def sight(self, when: str, sight: Sight) -> None: ...
    def ledger(self, lines: Sequence[Line]) -> None:
        """The whole ledger, once the load has ended."""


Look = Callable[[Sequence[Oracle], Lookout], Sight]


@dataclass(frozen=True)
class Early:
    """A judgement soon after the freeze, `hold_s` seconds of it. Where the verdict is `enough`, the soak and the
    challenge do not happen: nothing that comes later undoes a failure. `look` may leave out what is not asked.
    """

    enough: Callable[[Verdict], bool]
    hold_s: float
    look: Look = look_all


@dataclass(frozen=True)
class Shortcut:
    """What an episode may leave out that only checks a claim about a problem; the default leaves out nothing.

    `at_gate`: how oracles look before anything is planted. `gate_s`: how long the service has to hold then.
    """

    at_gate: Look = look_all
    gate_s: float | None = None
    early: Early | None = None


class Void(Exception):
    """Nothing can be said of the solver."""


def run_episode(
    problem: Problem, world: World, diary: Diary, timing: Timing = Timing(), shortcut: Shortcut = Shortcut()
) -> Verdict:
    """One episode from beginning to end. Recovery runs on every way out; Ctrl-C is a way to a void verdict."""
    episode = _Episode(problem, world, diary, timing, shortcut)
    try:
        episode.through()
    except Void as void:
        episode.void(str(void))
    except LabctlError as error:
        episode.void(f"the lab broke: {error.message}")
    except KeyboardInterrupt:
        episode.void("interrupted")
    except BaseException as bug:  # it leaves, but nothing of the episode stays
        episode.void(f"a bug: {type(bug).__name__}")
        episode.over()
        raise
    return episode.over()


class _Episode:
    """The stages, in order. What each found is handed to the next."""

    def __init__(self, problem: Problem, world: World, diary: Diary, timing: Timing, shortcut: Shortcut) -> None:
        self.problem, self.world, self.diary, self.timing = problem, world, diary, timing
        self.shortcut = shortcut
        self.gathered = Gathered()
        self.lines: Sequence[Line] = ()
        self.standing: dict[str, Planted] = {}

    def through(self) -> None:
        self.diary.stage("prepare")
        self.world.prepare()
        self.diary.stage("gate")
        self._gate()
        self.diary.stage("plant")
        self.world.disturb(True)
        self._plant_all()
        self.diary.stage("solve")
        self._solve()
        self.diary.stage("freeze")
        self.world.solver.end()
        self.world.disturb(False)
        hits = self._hits()
        self.diary.stage("soak")
        if self._enough(hits):
            return
        self._hold("soaked", max(self.timing.soak_s, self.problem.soak_s))
        self.diary.stage("challenge")
        self._challenge()
        self._hold("challenged", self.timing.hold_s)
        self.diary.stage("judge")
        self._still(hits)

    def void(self, reason: str) -> None:
        self._add(void=reason)
        self._kept("void", reason=reason)

    def over(self) -> Verdict:
        """End the solver, the noise, the faults and the load, each whatever became of the others, and judge."""
        world = self.world
        self._quietly(lambda: self.diary.stage("recover"))
        ends: tuple[Callable[[], Any], ...] = (
            world.solver.end, lambda: world.disturb(False), world.recover, world.load.stop
        )  # fmt: skip
        left = tuple(one for end in ends for one in _tried(end))
        for one in left:
            self._kept("residue", what=one)
        self._add(tampering=tuple(world.load.tampering()) if self.gathered.spans else ())
        self._kept("tampering", found=[one.model_dump() for one in self.gathered.tampering])
        self._quietly(lambda: self.diary.ledger(tuple(world.load.lines())))
        if left and not self.gathered.void:
            self.void(f"residue on the nodes: {'; '.join(left)}")
        return verdict_of(self.problem, self.gathered, self.lines)

    def _add(self, **more: Any) -> None:
        self.gathered = self.gathered.model_copy(update=more)

    def _quietly(self, write: Callable[[], None]) -> None:
        """Where the end of an episode cannot be written down, it has to end all the same. A verdict that could not
        be worked out again from its record is none.
        """
        try:
            write()
        except LabctlError as error:
            if not self.gathered.void:
                self._add(void=error.message)

    def _kept(self, kind: str, **data: object) -> None:
        self._quietly(lambda: self.diary.event(kind, **data))

    def _gate(self) -> None:
        """Healthy before anything is planted, under load, for the hold window; what the oracles saw then."""
        self.world.load.start()
        self.world.sleep(self.timing.settle_s)
        hold_s = self.timing.hold_s if self.shortcut.gate_s is None else self.shortcut.gate_s
        self._hold("before", hold_s, self.shortcut.at_gate)
        if bad := gate_of(self.problem, self.gathered, self.lines):
            raise Void(bad)

    def _enough(self, hits: dict[str, int | None]) -> bool:
        """Whether what holds already after a short while says all that is asked."""
        early = self.shortcut.early
        if early is None:
            return False
        self._hold("soaked", early.hold_s, early.look)
        self._still(hits)
        return early.enough(verdict_of(self.problem, self.gathered, self.lines))

    def _hold(self, when: When, seconds: float, look: Look = look_all) -> None:
        """Let a time pass, look, and wait until it is known how each request of it ended."""
        load = self.world.load
        begin = load.now_s()
        self.world.sleep(seconds)
        looked = load.now_s()
        sight = look(self.problem.oracles, self.world.lab)
        self.diary.sight(when, sight)
        span = Span(
            begin_s=begin, first_s=min(begin + self.timing.hold_s, looked), looked_s=looked, end_s=load.now_s()
        )
        self.world.sleep(load.patience_s)
        self.lines = load.lines()
        self.diary.event("window", when=when, **span.model_dump())
        self._add(sights={**self.gathered.sights, when: sight}, spans={**self.gathered.spans, when: span})

    def _plant_all(self) -> None:
        began = self.world.now()
        for planted in sorted(self.problem.faults, key=lambda p: p.at_s):
            self.world.sleep(max(0.0, began + planted.at_s - self.world.now()))
            injection = self._plant(planted)
            self._first_hit(planted, injection)
            self._end_of_trigger(planted, injection)
        if self.problem.mode == "metastable":
            self._stays()

    def _stays(self) -> None:
        """The triggers are gone; users have to go without all the same, or there is nothing to repair."""
        load = self.world.load
        begin = load.now_s()
        self.world.sleep(self.timing.stays_s)
        end = load.now_s()
        self.world.sleep(load.patience_s)
        objectives = [oracle for oracle in self.problem.oracles if oracle.aspect == "objective"]
        blank = Sight(seen={oracle.name: {} for oracle in objectives}, blind={})
        window = Window(begin_s=begin, looked_s=end, end_s=end, lines=tuple(load.lines()))
        found = judge_all(objectives, blank, blank, window)
        self.diary.event("stays", findings=[f.model_dump(mode="json") for f in found])
        if not any(f.outcome is Outcome.FAIL for f in found):
            raise Void("the bad state did not outlive its trigger")

    def _plant(self, planted: Planted) -> str:
        if planted.finds:
            try:
                planted = planted.found(self._printed(planted.node, planted.finds[1]))
            except ValueError as error:
                raise Void(f"{planted.node}: where to plant it makes no sense: {error}") from None
        if planted.first:
            self.world.challenge(planted.node, planted.first)
        injection = self.world.plant(planted)
        self.diary.event("planted", fault=planted.name, node=planted.node, injection=injection,
                         parameters=planted.parameters)  # fmt: skip
        if not planted.ends_after_s:
            self.standing[injection] = planted
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
        declared, diagnosis = solver.declared(), solver.diagnosis()
        self._add(declared=declared, diagnosis=diagnosis)
        how = "declared" if declared else "ended" if over else "out of time"
        said = diagnosis.model_dump(mode="json") if diagnosis else None
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

    def _hits(self) -> dict[str, int | None]:
        """How often each fault that stands has bitten so far; None where nobody can see."""
        found: dict[str, int | None] = {}
        for injection in self.standing:
            try:
                found[injection] = self.world.hits(injection)
            except LabctlError:
                found[injection] = None
        return found

    def _still(self, before: dict[str, int | None]) -> None:
        after = self._hits()
        biting = tuple(
            Biting(fault=planted.name, node=planted.node, may_stay=planted.may_stay, before=before[injection],
                   after=after[injection])
            for injection, planted in self.standing.items()
        )  # fmt: skip
        self._add(biting=biting)
        self.diary.event("biting", found=[one.model_dump() for one in biting])

    def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        deadline = self.world.now() + within_s
        while not holds():
            if self.world.now() >= deadline:
                return False
            self.world.sleep(self.timing.poll_s)
        return True


def _tried(end: Callable[[], Sequence[str] | None]) -> tuple[str, ...]:
    """Do it; what it says is left, or what went wrong, in words."""
    try:
        return tuple(end() or ())
    except LabctlError as error:
        return (error.message,)
