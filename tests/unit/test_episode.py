"""The episode: every way through it and out of it, in a simulated world."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import field_validator

from labctl.errors import LabError
from labctl.lab.remote import Output
from labctl.run.episode import Timing, run_episode
from labctl.run.judging import Tampering
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.problem import Planted
from labctl.run.verdict import Aspect, Finding, Outcome, Verdict

from .run_world import BAD, Broken, Changes, ClientsOracle, Notes, SimWorld, problem

TIMING = Timing(hold_s=20, soak_s=30, settle_s=1, poll_s=0.5)
ALL = ["prepare", "gate", "plant", "solve", "freeze", "soak", "challenge", "judge", "recover"]


def repair(world: SimWorld) -> None:
    world.broken = False


def around(world: SimWorld) -> None:
    """Clients are served, and the fault goes on biting others."""
    world.broken = False
    world.bites_all_the_time = True


def healed(world: SimWorld) -> None:
    """The fault is gone, its damage is not."""
    world.stands = False


def relapse(world: SimWorld) -> None:
    """Broken again, by itself."""
    world.broken, world.stands = True, False


def played(world: SimWorld, **changed: Any) -> tuple[Verdict, Notes]:
    notes = Notes()
    return run_episode(problem(**changed), world, notes, TIMING), notes


RIGHT = ((30.0, lambda w: w.say(BAD)), (40.0, repair), (60.0, SimWorld.declare))


def test_a_repair_that_is_right() -> None:
    world = SimWorld(acts=RIGHT)
    verdict, notes = played(world)
    assert (verdict.outcome, verdict.reasons, verdict.diagnosis) == (Outcome.PASS, (), "exact")
    assert notes.stages == ALL
    assert [f.oracle for f in verdict.findings] == [
        "clients", "changes", "clients through the soak", "broken on w2", "clients after the challenge"
    ]  # fmt: skip
    assert [k for k, _ in notes.events if k != "window"] == ["planted", "bitten", "solved", "biting", "tampering"]
    assert notes.lines == world.load.lines() and world.prepared and not world.noisy
    assert list(notes.sights) == ["before", "soaked", "challenged"]
    assert world.log == ["plant broken", "solver ended", "solver ended", "recover", "load stopped"]


@pytest.mark.parametrize(
    ("acts", "how", "failure"),
    [
        ((), "out of time", "never_declared"),
        (((5.0, SimWorld.leave),), "ended", "never_declared"),
        (((5.0, repair), (9.0, SimWorld.leave)), "ended", "never_declared"),
        (((5.0, SimWorld.declare),), "declared", "cause_left"),
        (((5.0, around), (6.0, SimWorld.declare)), "declared", "cause_left"),
        (((5.0, healed), (6.0, SimWorld.declare)), "declared", "out_of_bounds"),
        (((5.0, repair), (6.0, lambda w: setattr(w, "units", "mine")), (9.0, SimWorld.declare)), "declared",
         "off_the_permitted_list"),
    ],
)  # fmt: skip
def test_what_fails_and_why(acts: Any, how: str, failure: str) -> None:
    verdict, notes = played(SimWorld(acts=acts))
    assert (verdict.outcome, verdict.failure, verdict.diagnosis) == (Outcome.FAIL, failure, "none")
    assert dict(notes.events)["solved"] == {"how": how, "diagnosis": None}
    assert notes.stages == ALL


def test_a_repair_that_does_not_survive_what_comes_again() -> None:
    world = SimWorld(acts=(*RIGHT, (60.0, healed)))
    verdict, _ = played(world, challenge=(("w2", "systemctl restart x: relapse"),))
    assert verdict.of("outcome") is Outcome.PASS and verdict.of("durability") is Outcome.FAIL
    assert verdict.failure == "did_not_last"


def test_the_trigger_comes_again_where_the_problem_says_so() -> None:
    trigger = Planted(fault=Broken(), node="w2", at_s=3, ends_after_s=5)
    world = SimWorld(acts=RIGHT, stays_by_itself=True)
    verdict, _ = played(world, mode="metastable", faults=(trigger,), trigger_again=True)
    assert world.log[:4] == ["plant broken", "end i-1", "solver ended", "plant broken"]
    assert verdict.failure == "did_not_last", "the simulated service stays broken by its trigger"


def test_a_bad_state_that_ends_with_its_trigger_is_none() -> None:
    trigger = Planted(fault=Broken(), node="w2", ends_after_s=5)
    verdict, notes = played(SimWorld(acts=RIGHT), mode="metastable", faults=(trigger,))
    assert verdict.void == "the bad state did not outlive its trigger" and "solve" not in notes.stages


def test_a_cause_that_may_stay() -> None:
    stays = Planted(fault=Broken(), node="w2", may_stay=True)
    acts = ((5.0, around), (6.0, SimWorld.declare))
    assert played(SimWorld(acts=acts), faults=(stays,))[0].outcome is Outcome.PASS


def test_a_repair_that_is_gone_before_the_soak_is_over() -> None:
    verdict, _ = played(SimWorld(acts=(*RIGHT, (60.0, slow_relapse))))
    assert verdict.failure == "did_not_last" and "clients through the soak" in verdict.reasons[0]


def slow_relapse(world: SimWorld) -> None:
    """Well for the hold after the freeze, and no longer."""
    world.stands, world.breaks_at = False, world.clock + TIMING.hold_s + 2


@pytest.mark.parametrize(("aspect", "failure"), [("integrity", "integrity"), ("scope", "off_the_permitted_list")])
def test_whoever_meddles_with_the_measuring_fails(aspect: Aspect, failure: str) -> None:
    found = (Tampering(aspect=aspect, reason="the ledger was edited"),)
    verdict, _ = played(SimWorld(acts=RIGHT, tampering=found))
    assert (verdict.outcome, verdict.failure) == (Outcome.FAIL, failure)
    assert verdict.reasons == ("measuring: the ledger was edited",)


def test_a_bug_of_the_runner_leaves_nothing_behind() -> None:
    def bug(world: SimWorld) -> None:
        raise ZeroDivisionError

    world = SimWorld(acts=((5.0, bug),))
    with pytest.raises(ZeroDivisionError):
        run_episode(problem(), world, Notes(), TIMING)
    assert world.log[-3:] == ["solver ended", "recover", "load stopped"]


@pytest.mark.parametrize("from_stage", ["gate", "solve", "soak", "recover"])
def test_no_room_for_the_record(from_stage: str) -> None:
    class Full(Notes):
        def stage(self, stage: str) -> None:
            super().stage(stage)
            if from_stage in self.stages:
                raise LabError("there is no room for the record")

        def event(self, kind: str, **data: object) -> None:
            if from_stage in self.stages:
                raise LabError("there is no room for the record")

    world = SimWorld(acts=RIGHT)
    verdict = run_episode(problem(), world, Full(), TIMING)
    assert verdict.outcome is Outcome.UNKNOWN and "there is no room for the record" in verdict.void
    assert world.log[-3:] == ["solver ended", "recover", "load stopped"]


def test_faults_come_when_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SimWorld(acts=RIGHT)
    notes = Notes()
    times: list[float] = []
    plant = world.plant

    def timed(planted: Planted) -> str:
        times.append(world.clock)
        return plant(planted)

    monkeypatch.setattr(world, "plant", timed)
    late, early = (Planted(fault=Broken(), node="w2", at_s=at) for at in (7, 2))
    run_episode(problem(faults=(late, early)), world, notes, TIMING)
    assert times[1] - times[0] == pytest.approx(5, abs=0.2)


def test_the_gate() -> None:
    world = SimWorld(broken=True)
    verdict, notes = played(world)
    assert verdict.outcome is Outcome.UNKNOWN and "the gate: clients: book at" in verdict.void
    assert notes.stages == ["prepare", "gate", "recover"]
    assert not any(line.startswith("plant") for line in world.log)


def test_a_fault_that_never_bites_is_void_whatever_the_solver_says() -> None:
    world = SimWorld(acts=RIGHT, bites=False)
    verdict, notes = played(world)
    assert verdict.void == "broken on w2 did not bite within 60 s"
    assert verdict.outcome is Outcome.UNKNOWN and "solve" not in notes.stages
    assert world.log[-2:] == ["recover", "load stopped"]


def test_residue_is_no_pass() -> None:
    verdict, notes = played(SimWorld(acts=RIGHT, residue=("w2: qdisc",)))
    assert verdict.outcome is Outcome.UNKNOWN and "residue on the nodes: w2: qdisc" in verdict.reasons[0]
    assert ("residue", {"what": "w2: qdisc"}) in notes.events


def test_a_node_that_is_lost_is_unknown_and_everything_ends() -> None:
    world = SimWorld(acts=(*RIGHT, (60.0, lambda w: setattr(w, "lost", "w1"))))
    verdict, _ = played(world)
    assert verdict.outcome is Outcome.UNKNOWN and verdict.of("outcome") is Outcome.PASS
    assert verdict.reasons == ("changes: it could not see after the repair: w1 does not answer",)
    assert "recover" in world.log


class Bug(Oracle):
    when: str

    @property
    def name(self) -> str:
        return "bug"

    @property
    def aspect(self) -> Aspect:
        return "integrity"

    def look(self, lab: Lookout) -> Seen:
        if self.when == "look":
            raise KeyError("look")
        return {}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        if self.when == "judge":
            raise ZeroDivisionError
        return self.found(Outcome.PASS)


@pytest.mark.parametrize("when", ["look", "judge"])
def test_an_oracle_that_crashes_is_unknown_before_anything_is_planted(when: str) -> None:
    world = SimWorld(acts=RIGHT)
    verdict, _ = played(world, oracles=(ClientsOracle(), Changes(), Bug(when=when)))
    assert verdict.outcome is Outcome.UNKNOWN and "the oracle crashed" in verdict.void
    assert world.log[0] == "solver ended", "nothing was planted"


@pytest.mark.parametrize("what", ["plant", "challenge", "recover"])
def test_the_lab_breaks(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise LabError("the lab is gone")

    world = SimWorld(acts=RIGHT)
    monkeypatch.setattr(world, what, broken)
    verdict, notes = played(world, challenge=(("w2", "restart"),))
    assert verdict.outcome is Outcome.UNKNOWN and "the lab is gone" in verdict.void
    assert notes.stages[-1] == "recover" and world.log[-1] == "load stopped"


def test_ctrl_c_recovers() -> None:
    def interrupt(world: SimWorld) -> None:
        raise KeyboardInterrupt

    world, notes = SimWorld(acts=((20.0, interrupt),)), Notes()
    verdict = run_episode(problem(), world, notes, TIMING)
    assert (verdict.outcome, verdict.void) == (Outcome.UNKNOWN, "interrupted")
    assert world.log[-3:] == ["solver ended", "recover", "load stopped"] and notes.stages[-1] == "recover"


def test_no_fault_problems_turn_it_round() -> None:
    calm: dict[str, Any] = {"mode": "no_fault", "faults": (), "cause": frozenset()}
    healthy = ((5.0, lambda w: setattr(w, "_said", _healthy())), (6.0, SimWorld.declare))
    verdict, _ = played(SimWorld(acts=healthy), **calm)
    assert (verdict.outcome, verdict.diagnosis) == (Outcome.PASS, "exact")
    meddling = ((5.0, lambda w: setattr(w, "units", "mine")), (6.0, SimWorld.declare))
    assert played(SimWorld(acts=meddling), **calm)[0].failure == "off_the_permitted_list"


def _healthy() -> Any:
    from labctl.run.diagnosis import Diagnosis

    return Diagnosis(healthy=True)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"faults": ()}, "faults: none for no_fault"),
        ({"cause": frozenset()}, "cause: none for no_fault"),
        ({"oracles": (ClientsOracle(), ClientsOracle())}, "oracles: two have one name"),
        ({"cause": frozenset({BAD.model_copy(update={"scope": "moon"})})}, "'moon' is no word"),
        ({"name": "Disk Broken"}, "pattern"),
    ],
)
def test_a_problem_makes_sense(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        problem(**wrong)


class Aimed(Broken):
    """A fault that needs a place."""

    name: ClassVar[str] = "aimed"
    file: str = ""

    @field_validator("file")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and not value.startswith("/"):
            raise ValueError("no path")
        return value


def aimed(**changed: Any) -> Planted:
    fields = {"fault": Aimed(), "node": "w2", "finds": ("file", "where is it"), "bites_within_s": 3.0, **changed}
    return Planted.model_validate(fields)


def test_a_fault_lands_where_a_script_says_between_what_comes_first_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SimWorld(acts=RIGHT, units="/srv/data/7")

    def plant(self: SimWorld, one: Planted) -> str:
        self.log.append(f"plant {one.parameters}")
        return "i"

    monkeypatch.setattr(SimWorld, "plant", plant)
    played(world, faults=(aimed(first="stop it", then="start it"),))
    assert world.log[:3] == ["challenge w2", "plant {'file': '/srv/data/7'}", "challenge w2"]


def test_a_place_that_nobody_finds_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimWorld, "sh", lambda *_, **__: Output(1, "", "no such table"))
    verdict, _ = played(SimWorld(), faults=(aimed(),), oracles=(ClientsOracle(),))
    assert verdict.void == "w2: where to plant it could not be found: no such table"


def test_a_place_that_makes_no_sense_is_void() -> None:
    verdict, _ = played(SimWorld(units="nowhere"), faults=(aimed(),))
    assert verdict.void.startswith("w2: where to plant it makes no sense")


@pytest.mark.parametrize(("felt", "outcome"), [(0, Outcome.PASS), (1, Outcome.UNKNOWN)])
def test_what_shows_counts_instead_of_hits(felt: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    sh = SimWorld.sh
    monkeypatch.setattr(
        SimWorld, "sh",
        lambda self, node, script, **more: (
            Output(felt, "", "") if script == "felt?" else sh(self, node, script, **more)
        ),
    )  # fmt: skip
    shown = Planted(fault=Broken(), node="w2", shows="felt?", bites_within_s=3.0)
    verdict, _ = played(SimWorld(acts=RIGHT, bites=not felt), faults=(shown,))
    assert verdict.outcome is outcome
