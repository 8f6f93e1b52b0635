"""`labctl run` on the command line: what it asks for, what it says, how it ends."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click
import pytest

from labctl.cli.main import build_cli
from labctl.errors import NodeDirtyError, UsageError
from labctl.run import catalogue as the
from labctl.run import perform as performing
from labctl.run.catalogue import Catalogue
from labctl.run.diary import RecordDiary
from labctl.run.episode import Timing
from labctl.run.perform import Request, check_solver, make_solver
from labctl.run.problem import Decoy, Script
from labctl.run.proving import CHECK_TIMING
from labctl.run.record import RecordWriter, Run, read_record
from labctl.run.solvers.command import CommandSolver
from labctl.run.solvers.manual import ManualSolver
from labctl.run.solvers.none import NoSolver
from labctl.run.solvers.scripted import ScriptedSolver
from labctl.run.verdict import Finding, Outcome, Verdict

from .cli_world import ToyLab, World
from .run_world import BAD, SimWorld, problem
from .solving import Nodes, Notebook, setting

DECOY = Decoy(script=Script(title="restart"), fails_as="cause_left")


@pytest.fixture
def world(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(the, "catalogue", lambda: Catalogue({"reads_fail": problem()}, {}, "rev", Path()))
    made = World(capsys, tmp_path)
    made.labs["default"] = ToyLab()
    made.run("up")
    return made


def played(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> list[Request]:
    """Let every run end with this verdict; what was asked for."""
    asked: list[Request] = []

    def perform(request: Request, site: object, tell: Any) -> Verdict:
        asked.append(request)
        tell("stage", {"stage": "gate"})
        tell("planted", {"fault": "broken", "node": "w2", "injection": "x1"})
        return verdict

    monkeypatch.setattr(performing, "perform", perform)
    return asked


def passed(outcome: Outcome = Outcome.PASS) -> Verdict:
    aspects = ("objective", "cause", "integrity", "scope", "durability")
    findings = [Finding.model_validate({"oracle": a, "aspect": a, "outcome": outcome}) for a in aspects]
    return Verdict(findings=tuple(findings), declared=True)


def test_what_is_asked_for(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = played(monkeypatch, passed())
    argv = ("--noise", "heavy", "--seed", "7", "--surface", "root", "--limit", "60", "--no-reset", "--hold", "20")
    done = world.run("run", "reads_fail", "--solver", "none", "--record", str(tmp_path / "r"), *argv)
    assert done.code == 0 and done.out.startswith("PASS\n") and done.out.endswith(f"record: {tmp_path / 'r'}\n")
    (request,) = asked
    found = request.asked()
    assert (found.noise, found.surface, found.limit_s) == ("heavy", "root", 60.0)
    assert (request.solver, request.seed, request.reset, request.catalogue) == (
        "none",
        7,
        False,
        "rev (1 problems)",
    )
    assert request.timing == Timing(hold_s=20.0)


@pytest.mark.parametrize(
    ("verdict", "code"), [(passed(), 0), (passed(Outcome.FAIL), 1), (Verdict(declared=False, void="gone"), 2)]
)
def test_the_verdict_is_the_exit_status(
    verdict: Verdict, code: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = played(monkeypatch, verdict)
    done = world.run("run", "reads_fail", "--json")
    assert done.code == code and done.data["outcome"] == verdict.outcome
    assert done.data["seed"] == asked[0].seed and done.err == ""
    assert asked[0].asked() == problem() and asked[0].reset
    assert asked[0].record.parent == world.directory / "state" / "groundfault" / "runs"


def test_a_person_is_not_told_the_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, passed())
    assert "broken" not in world.run("run", "reads_fail", "--solver", "manual").err
    assert "broken" in world.run("run", "reads_fail").err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("reads_fial",), "there is no problem called 'reads_fial'"),
        (("reads_fail", "--solver", "alternative"), "reads_fail has none"),
        (("reads_fail", "--solver", "decoy:1"), "reads_fail has 0 decoys"),
        (("reads_fail", "--solver", "/no/such thing"), "'/no/such' is no command"),
        (("reads_fail", "--solver", ""), "'' is no command"),
        (("reads_fail", "--seed", "-1"), "--seed"),
        (("reads_fail",), "runs on workload 'booking', lab default has no workload"),
        (("reads_fail", "--lab", "other"), "there is no lab called 'other'"),
    ],
)
def test_bad_words_get_a_line(argv: tuple[str, ...], text: str, world: World) -> None:
    done = world.run("run", *argv)
    assert done.code == 64 and text in done.err and not (world.directory / "state").exists()


def test_which_solver_it_is(tmp_path: Path) -> None:
    mine = problem(decoys=(DECOY,), alternative=Script(title="other"))

    def made(name: str, **more: Any) -> Any:
        check_solver(name, mine)
        request = Request(problem=mine, solver=name, seed=1, record=tmp_path, catalogue="c", **more)
        return make_solver(request, setting(mine, tmp_path, Nodes(), Notebook()))

    assert isinstance(made("none"), NoSolver) and isinstance(made("manual"), ManualSolver)
    assert isinstance(made("sh -c 'exit 1'"), CommandSolver)
    reference, other, decoy = made("reference"), made("alternative"), made("decoy:1")
    assert isinstance(reference, ScriptedSolver) and reference.script.diagnosis == (BAD,)
    assert other.script.title == "other" and other.script.diagnosis == (BAD,)
    assert decoy.script.title == "restart" and decoy.script.diagnosis is None
    assert made("none", script=Script(title="look")).script.title == "look"
    with pytest.raises(UsageError, match="has 1 decoys") as refused:
        check_solver("decoy:2", mine)
    assert refused.value.hint == "decoy:1 is the first"


def asked(tmp_path: Path) -> Request:
    return Request(problem=problem(), solver="none", seed=1, record=tmp_path, catalogue="c")


def written(tmp_path: Path) -> RecordWriter:
    run = Run(
        id="x",
        problem="reads_fail",
        catalogue="c",
        solver="none",
        seed=1,
        lab="sim",
        started=dt.datetime.now(dt.UTC),
    )
    return RecordWriter(tmp_path / "r", run, lambda: 0.0)


def test_ctrl_c_twice_says_that_somebody_has_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(world: SimWorld) -> None:
        raise KeyboardInterrupt

    def recover(self: SimWorld) -> tuple[str, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimWorld, "recover", recover)
    with written(tmp_path) as record:
        diary = RecordDiary(record, lambda kind, data: None)
        world: Any = SimWorld(acts=((5.0, interrupt),))
        with pytest.raises(NodeDirtyError, match="interrupted while it recovered"):
            performing._episode(asked(tmp_path), problem(), world, diary)
    found = read_record(tmp_path / "r")
    assert found.verdict is not None and found.verdict.outcome is Outcome.UNKNOWN and found.run.aborted


def test_ctrl_c_once_is_recovered_and_unknown(tmp_path: Path) -> None:
    def interrupt(world: SimWorld) -> None:
        raise KeyboardInterrupt

    with written(tmp_path) as record:
        world: Any = SimWorld(acts=((5.0, interrupt),))
        found = performing._episode(
            asked(tmp_path), problem(), world, RecordDiary(record, lambda kind, data: None)
        )
    assert found[1] == "interrupted" and found[0].outcome is Outcome.UNKNOWN and "recover" in world.log


@pytest.mark.parametrize(("command", "timing"), [("run", Timing()), ("check", CHECK_TIMING)])
def test_the_help_says_how_long_it_is_watched(command: str, timing: Timing) -> None:
    said = {option.name: option.help for option in build_cli().commands[command].params
            if isinstance(option, click.Option)}  # fmt: skip
    for name, seconds in (("hold_s", timing.hold_s), ("soak_s", timing.soak_s)):
        assert (said[name] or "").endswith(f"[default: {seconds:g}]"), name
