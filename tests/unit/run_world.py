"""A service, its clients, a solver and a lab, all simulated: a world for episodes that takes no time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel

from labctl.errors import LabError
from labctl.lab.remote import Output
from labctl.oracles.clients import Objective, Objectives, clients
from labctl.run.diagnosis import Diagnosis, Triple, Vocabulary
from labctl.run.judging import Tampering
from labctl.run.ledger import Line
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.problem import Planted, Problem, Script
from labctl.run.verdict import Aspect, Finding, Outcome
from tests.unit.lookouts import PythonBySh

BAD = Triple(component="disk of w2", mechanism="unreadable", scope="one table")


class Broken(BaseModel):
    """A fault of the simulated service."""

    name: ClassVar[str] = "broken"


class ClientsOracle(Oracle):
    @property
    def name(self) -> str:
        return "clients"

    @property
    def aspect(self) -> Aspect:
        return "objective"

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        promised = Objectives(operations={"book": Objective(success=0.95, p95_s=1)}, slice_s=10)
        return clients(window.lines, promised, window.begin_s, window.end_s)


class Changes(Oracle):
    """Scope: the unit files are as they were."""

    @property
    def name(self) -> str:
        return "changes"

    @property
    def aspect(self) -> Aspect:
        return "scope"

    def look(self, lab: Lookout) -> Seen:
        return {"text": lab.sh("w1", "cat units").stdout}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        return self.found(Outcome.PASS) if before == after else self.found(Outcome.FAIL, "units were changed")


WORDS = Vocabulary(
    component=("disk of w2", "network"), mechanism=("unreadable", "slow"), scope=("one table", "all of it")
)


def problem(**changed: Any) -> Problem:
    fields: dict[str, Any] = {
        "name": "reads_fail", "title": "reads fail", "statement": "Some bookings cannot be read.",
        "cause": frozenset({BAD}), "root_cause": "sectors of w2's disk", "vocabulary": WORDS,
        "faults": (Planted(fault=Broken(), node="w2"),), "oracles": (ClientsOracle(), Changes()),
        "reference": Script(title="rewrite"), "limit_s": 600.0,
    }  # fmt: skip
    return Problem(**{**fields, **changed})


@dataclass
class SimWorld(PythonBySh):
    """Ten requests a second; they fail while `broken`. `acts`: what the solver does, and when after its start."""

    acts: Sequence[tuple[float, Callable[[SimWorld], None]]] = ()
    bites: bool = True
    broken: bool = False
    stands: bool = False
    units: str = "as installed"
    lost: str = ""
    residue: tuple[str, ...] = ()
    healed_by_recovery: bool = True
    tampering: tuple[Tampering, ...] = ()
    bites_all_the_time: bool = False
    breaks_at: float = math.inf
    prepared: bool = False
    noisy: bool = False
    stays_by_itself: bool = False
    log: list[str] = field(default_factory=list)
    clock: float = 1000.0
    _began: float = 0.0
    _lines: list[Line] = field(default_factory=list)
    _said: Diagnosis | None = None
    _declared: bool = False
    _gone: bool = False
    _solving: float | None = None

    nodes: tuple[str, ...] = ("w1", "w2", "w3")

    @property
    def lab(self) -> SimWorld:
        return self

    @property
    def load(self) -> SimLoad:
        return SimLoad(self)

    @property
    def solver(self) -> SimSolver:
        return SimSolver(self)

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        if node == self.lost:
            raise LabError(f"{node} does not answer")
        return Output(0, self.units, "")

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        """A tenth of a second at a time: the solver acts, a request comes."""
        for _ in range(round(seconds * 10)):
            self.clock += 0.1
            self.broken = self.broken or self.clock >= self.breaks_at
            if self._solving is not None:
                for act in [a for a in self.acts if self._solving + a[0] <= self.clock + 1e-9]:
                    self.acts = [a for a in self.acts if a is not act]
                    act[1](self)
            if self._began:
                due = self.clock - self._began
                answer: Any = "error" if self.broken else "ok"
                self._lines.append(Line(due_s=due, sent_s=due, latency_s=0.01, operation="book", answer=answer))

    def prepare(self) -> None:
        self.prepared = True

    def disturb(self, on: bool) -> None:
        self.noisy = on

    def plant(self, planted: Planted) -> str:
        self.log.append(f"plant {planted.name}")
        self.broken = self.stands = True
        return "i-1"

    def hits(self, injection: str) -> int:
        """It bites as often as a request has failed."""
        if not self.bites:
            return 0
        if self.bites_all_the_time:
            return int(self.clock)
        return 1 + sum(line.answer == "error" for line in self._lines) if self.stands else 1

    def end(self, injection: str) -> None:
        self.log.append(f"end {injection}")
        self.stands = False
        self.broken = self.broken and self.stays_by_itself

    def challenge(self, node: str, script: str) -> None:
        self.log.append(f"challenge {node}")
        if "relapse" in script:
            self.broken = True

    def recover(self) -> tuple[str, ...]:
        self.log.append("recover")
        self.broken = self.broken and not self.healed_by_recovery
        return self.residue

    def say(self, *triples: Triple) -> None:
        self._said = Diagnosis(triples=triples)

    def declare(self) -> None:
        self._declared = True

    def leave(self) -> None:
        self._gone = True


@dataclass
class SimLoad:
    world: SimWorld
    patience_s: float = 1.0

    def start(self) -> None:
        self.world._began = self.world.clock

    def now_s(self) -> float:
        return self.world.clock - self.world._began

    def lines(self) -> Sequence[Line]:
        return tuple(self.world._lines)

    def tampering(self) -> Sequence[Tampering]:
        return self.world.tampering

    def stop(self) -> None:
        self.world.log.append("load stopped")


@dataclass
class SimSolver:
    world: SimWorld

    def start(self) -> None:
        self.world._solving = self.world.clock

    def diagnosis(self) -> Diagnosis | None:
        return self.world._said

    def declared(self) -> bool:
        return self.world._declared

    def ended(self) -> bool:
        return self.world._gone

    def end(self) -> None:
        self.world._solving = None
        self.world.log.append("solver ended")


@dataclass
class Notes:
    """A diary that keeps all."""

    stages: list[str] = field(default_factory=list)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    sights: dict[str, Any] = field(default_factory=dict)
    lines: Sequence[Line] = ()

    def stage(self, stage: str) -> None:
        self.stages.append(stage)

    def event(self, kind: str, **data: object) -> None:
        self.events.append((kind, data))

    def sight(self, when: str, sight: Any) -> None:
        self.sights[when] = sight

    def ledger(self, lines: Sequence[Line]) -> None:
        self.lines = lines
