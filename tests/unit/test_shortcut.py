"""What a check of a problem leaves out of an episode, and that nothing else is judged for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.lab.remote import Output
from labctl.oracles.booking import standard
from labctl.run.episode import Early, Shortcut, Timing, run_episode
from labctl.run.gates import Gates, key_of
from labctl.run.judging import Gathered, Span, verdict_of
from labctl.run.oracle import Lookout, Oracle, Seen, Sight, Window, look_all, look_for
from labctl.run.problem import Problem
from labctl.run.verdict import Aspect, Finding, Outcome, Verdict
from tests.unit.lookouts import PythonBySh

from .run_world import BAD, Changes, Notes, SimWorld, problem

TIMING = Timing(hold_s=20, soak_s=40, settle_s=1, poll_s=0.5)


def repair(world: SimWorld) -> None:
    world.broken = world.stands = False


def fails_later(world: SimWorld) -> None:
    repair(world)
    world.breaks_at = world.clock + TIMING.hold_s + 10


def played(act: Callable[[SimWorld], None], enough: Callable[[Verdict], bool] | None) -> tuple[Verdict, Notes]:
    acts: Any = ((5.0, lambda w: w.say(BAD)), (6.0, act), (7.0, SimWorld.declare))
    notes = Notes()
    return run_episode(problem(), SimWorld(acts=acts), notes, TIMING, shortcut(enough)), notes


def shortcut(enough: Callable[[Verdict], bool] | None) -> Shortcut:
    return Shortcut(early=Early(enough, 10) if enough else None)


def failed(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.FAIL


def test_a_failure_that_says_enough_ends_the_soak() -> None:
    verdict, notes = played(lambda w: None, failed)
    assert (verdict.outcome, verdict.failure) == (Outcome.FAIL, "cause_left")
    assert "challenge" not in notes.stages and notes.stages[-1] == "recover"
    whole, _ = played(lambda w: None, None)
    assert (whole.outcome, whole.failure) == (verdict.outcome, verdict.failure)


def test_what_fails_only_later_is_waited_for() -> None:
    verdict, notes = played(fails_later, failed)
    assert verdict.outcome is Outcome.FAIL and "challenge" in notes.stages


def test_what_passes_is_judged_to_the_end() -> None:
    verdict, notes = played(repair, failed)
    assert verdict.outcome is Outcome.PASS and notes.stages[-2:] == ["judge", "recover"]
    assert any(finding.oracle == "clients after the challenge" for finding in verdict.findings)


def test_a_failure_of_another_kind_is_judged_to_the_end() -> None:
    _, notes = played(lambda w: None, lambda verdict: verdict.failure == "off_the_permitted_list")
    assert notes.stages[-2:] == ["judge", "recover"]


def test_only_what_decides_is_looked_at_early() -> None:
    acts: Any = (
        (5.0, lambda w: w.say(BAD)),
        (6.0, lambda w: setattr(w, "units", "mine")),
        (7.0, SimWorld.declare),
    )
    asked: tuple[Aspect, ...] = ("objective",)
    early = Early(failed, 10, partial(look_for, asked))
    notes = Notes()
    verdict = run_episode(problem(), SimWorld(acts=acts), notes, TIMING, Shortcut(early=early))
    outcomes = {finding.oracle: finding.outcome for finding in verdict.findings}
    assert outcomes["clients"] is Outcome.FAIL and outcomes["changes"] is Outcome.UNKNOWN
    assert verdict.outcome is Outcome.FAIL and "challenge" not in notes.stages


def test_a_gate_may_be_short() -> None:
    notes = Notes()
    run_episode(problem(), SimWorld(acts=()), notes, TIMING, Shortcut(gate_s=3))
    before: Any = next(data for kind, data in notes.events if kind == "window")
    assert before["looked_s"] - before["begin_s"] == pytest.approx(3, abs=0.2)


def test_without_a_challenge_nobody_passes() -> None:
    mine: Problem = problem(oracles=(Changes(),))
    span = Span(begin_s=0, first_s=1, looked_s=1, end_s=2)
    sight = Sight(seen={"changes": {"text": ""}}, blind={})
    half = Gathered(
        declared=True, spans={"before": span, "soaked": span}, sights={"before": sight, "soaked": sight}
    )
    assert verdict_of(mine, half, ()).void == "it was not judged to its end"
    spans = {**half.spans, "challenged": span}
    sights = {**half.sights, "challenged": sight}
    assert verdict_of(mine, half.model_copy(update={"spans": spans, "sights": sights}), ()).void == ""


class Counted(Oracle):
    """Says how often anybody has looked; `permitted` is for the judgement."""

    label: str = "one"
    permitted: tuple[str, ...] = ()
    moving: bool = False
    looks: Any

    @property
    def name(self) -> str:
        return self.label

    @property
    def aspect(self) -> Aspect:
        return "scope"

    @property
    def moves(self) -> bool:
        return self.moving

    def look(self, lab: Lookout) -> Seen:
        self.looks.append(self.label)
        if len(self.looks) > 9:
            raise LabError("too dark")
        return {"looks": len(self.looks)}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        return self.found(Outcome.PASS)


def test_gates_are_looked_at_once() -> None:
    looks: list[str] = []
    gates, lab = Gates(), SimWorld()
    first = gates.look([Counted(looks=looks), Counted(looks=looks, label="two", moving=True)], lab)
    again = gates.look(
        [Counted(looks=looks, permitted=("x",)), Counted(looks=looks, label="two", moving=True)], lab
    )
    assert looks == ["one", "two", "two"] and first.seen["one"] == again.seen["one"] and not again.blind
    assert first.seen["two"] != again.seen["two"], "what moves is looked at"
    gates.look([Counted(looks=looks, label="three")], lab)
    gates.forget()
    gates.look([Counted(looks=looks)], lab)
    assert looks == ["one", "two", "two", "three", "one"]


def test_a_blind_look_is_not_kept() -> None:
    gates, looks = Gates(), ["x"] * 9
    oracle = Counted(looks=looks)
    assert gates.look([oracle], SimWorld()).blind == {"one": "too dark"}
    looks.clear()
    assert gates.look([oracle], SimWorld()).seen == {"one": {"looks": 1}}


class Silent(PythonBySh):
    """A lab whose nodes answer nothing."""

    nodes = ("w1", "w2", "w3")

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        return Output(1, "", "")


@pytest.mark.parametrize("oracle", [one for one in standard() if hasattr(one, "permitted")], ids=lambda o: o.name)
def test_what_is_permitted_is_not_for_a_look(oracle: Oracle) -> None:
    blunt = oracle.model_copy()
    del blunt.__dict__["permitted"]
    with pytest.raises(AttributeError):
        _ = blunt.permitted  # type: ignore[attr-defined]
    assert "AttributeError" not in str(look_all([blunt], Silent()).blind)


@pytest.mark.parametrize("other", [{"label": "two"}, {"moving": True}])
def test_oracles_that_see_differently_have_another_key(other: dict[str, Any]) -> None:
    assert key_of(Counted(looks=[])) != key_of(Counted(looks=[], **other))
    assert key_of(Counted(looks=[])) == key_of(Counted(looks=[], permitted=("a", "b")))
