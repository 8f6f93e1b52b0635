"""Records of whole episodes, judged again without a world."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import pytest

from labctl.cli.main import main
from labctl.errors import LabError
from labctl.run import catalogue as the
from labctl.run.again import judge_again
from labctl.run.catalogue import Catalogue
from labctl.run.diary import RecordDiary, gathered_of
from labctl.run.episode import Timing, run_episode
from labctl.run.problem import Problem
from labctl.run.record import RecordWriter, Run, read_record
from labctl.run.verdict import Outcome, Verdict
from labctl.run.words import told, verdict_text

from .run_world import SimWorld, problem
from .test_episode import RIGHT, Bug, healed, relapse

TIMING = Timing(hold_s=20, soak_s=30, settle_s=1, poll_s=0.5)


def recorded(path: Path, world: SimWorld, what: Problem | None = None) -> Verdict:
    """An episode, played into a record."""
    what = what or problem()
    run = Run(
        id="x", problem=what.name, catalogue="abc (1 problems)", solver="none", seed=1, lab="sim",
        started=dt.datetime.now(dt.UTC),
    )  # fmt: skip
    with RecordWriter(path, run, lambda: world.clock) as record:
        verdict = run_episode(what, world, RecordDiary(record, lambda kind, data: None), TIMING)
        record.finish(verdict, dt.datetime.now(dt.UTC))
    return verdict


def pool(*problems: Problem) -> Catalogue:
    return Catalogue({one.name: one for one in problems}, {}, "abc", Path())


@pytest.mark.parametrize(
    "world",
    [
        SimWorld(acts=RIGHT),
        SimWorld(),
        SimWorld(acts=((5.0, SimWorld.declare),)),
        SimWorld(acts=((5.0, healed), (6.0, SimWorld.declare))),
        SimWorld(acts=(*RIGHT, (60.0, lambda w: setattr(w, "units", "mine")))),
        SimWorld(acts=(*RIGHT, (60.0, lambda w: setattr(w, "lost", "w1")))),
        SimWorld(acts=RIGHT, bites=False),
        SimWorld(broken=True),
        SimWorld(acts=RIGHT, residue=("w2: qdisc",)),
    ],
    ids=["pass", "nothing", "declared", "damage", "scope", "lost", "void", "gate", "residue"],
)
def test_it_comes_to_the_same_verdict(world: SimWorld, tmp_path: Path) -> None:
    verdict = recorded(tmp_path / "r", world)
    began = time.monotonic()
    again = judge_again(tmp_path / "r", pool(problem()))
    assert time.monotonic() - began < 2.0
    assert again.differences == () and again.same_revision
    assert json.loads(again.verdict.model_dump_json()) == json.loads(verdict.model_dump_json())


def test_an_edited_ledger_is_never_a_pass(tmp_path: Path) -> None:
    assert recorded(tmp_path / "r", SimWorld(acts=RIGHT)).outcome is Outcome.PASS
    ledger = tmp_path / "r" / "artifacts" / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    again = judge_again(tmp_path / "r", pool(problem()))
    assert (again.verdict.outcome, again.verdict.failure) == (Outcome.FAIL, "integrity")
    assert "measuring: the ledger was edited after it was written" in again.verdict.reasons
    assert "outcome: was pass, is fail" in again.differences


def test_another_way_to_judge_is_told(tmp_path: Path) -> None:
    recorded(tmp_path / "r", SimWorld(acts=RIGHT))
    other = problem(oracles=(*problem().oracles, Bug(when="judge")))
    again = judge_again(tmp_path / "r", pool(other))
    assert again.verdict.outcome is Outcome.UNKNOWN
    assert "outcome: was pass, is unknown" in again.differences
    assert "bug: was not asked, is unknown" in again.differences


def test_a_verdict_that_somebody_wrote_is_told(tmp_path: Path) -> None:
    recorded(tmp_path / "r", SimWorld())
    file = tmp_path / "r" / "verdict.json"
    file.write_text(Verdict(declared=True, void="").model_dump_json())
    assert "outcome: was unknown, is fail" in judge_again(tmp_path / "r", pool(problem())).differences
    file.unlink()
    assert judge_again(tmp_path / "r", pool(problem())).differences == ("the record has no verdict",)


@pytest.mark.parametrize("damage", ["cut", "sight", "event"])
def test_a_record_that_is_damaged(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorded(path, SimWorld(acts=RIGHT))
    events = (path / "events.jsonl").read_text().splitlines(keepends=True)
    if damage == "cut":
        (path / "events.jsonl").write_text("".join(events[:6]))
    elif damage == "sight":
        (path / "artifacts" / "sight-soaked.json").write_text("{")
    else:
        broken = "".join(e.replace('"looked_s"', '"looked"') for e in events)
        (path / "events.jsonl").write_text(broken)
    with pytest.raises(LabError, match=r"did not come to its end|is damaged"):
        judge_again(path, pool(problem()))


def test_a_problem_that_is_no_more(tmp_path: Path) -> None:
    recorded(tmp_path / "r", SimWorld(acts=RIGHT))
    with pytest.raises(LabError, match="no problem reads_fail any more"):
        judge_again(tmp_path / "r", pool())


def test_what_is_gathered_is_what_was(tmp_path: Path) -> None:
    world = SimWorld(acts=(*RIGHT, (60.0, healed)))
    recorded(tmp_path / "r", world, problem(challenge=(("w2", "relapse"),)))
    gathered, lines = gathered_of(read_record(tmp_path / "r"))
    assert list(gathered.spans) == ["before", "soaked", "challenged"] and gathered.declared
    assert lines == world.load.lines() and gathered.biting[0].fault == "broken"
    assert relapse is not healed


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the, "catalogue", lambda: pool(problem()))
    recorded(tmp_path / "r", SimWorld(acts=RIGHT))
    recorded(tmp_path / "f", SimWorld())
    recorded(tmp_path / "u", SimWorld(broken=True))
    code, out, _ = run(capsys, "judge", str(tmp_path / "r"))
    assert code == 0 and out.startswith("PASS\noutcome pass, safety pass, durability pass; diagnosis exact\n")
    assert out.endswith("the same verdict as in the record\n")
    code, out, _ = run(capsys, "judge", str(tmp_path / "f"))
    assert code == 1 and out.startswith("FAIL: the repair was never declared\n")
    code, out, _ = run(capsys, "judge", str(tmp_path / "u"))
    assert code == 2 and out.startswith("UNKNOWN\n  void: the gate: clients: ")
    code, out, _ = run(capsys, "judge", str(tmp_path / "f"), "--json")
    data: dict[str, Any] = json.loads(out)
    assert data["outcome"] == "fail" and data["failure"] == "never_declared" and data["differences"] == []
    (tmp_path / "r" / "verdict.json").unlink()
    assert run(capsys, "judge", str(tmp_path / "r"))[0] == 70
    code, _, err = run(capsys, "judge", str(tmp_path / "none"))
    assert code == 70 and "is no record" in err


def test_words_of_an_episode_give_nothing_away() -> None:
    planted = {"fault": "medium_error", "node": "w2"}
    assert told("planted", planted) == "" and "medium_error" in told("planted", planted, spoil=True)
    assert told("stage", {"stage": "soak"}).startswith("soak: ")
    hands = {"action": "replace-disk", "node": "w2", "ended": ["medium_error x"]}
    assert told("hardware", hands) == "  hardware: action replace-disk, node w2"
    assert told("window", {}) == "" and told("sight", {"when": "x", "blind": {"scope": "w1"}}) != ""
    many = Verdict(declared=True, void="x")
    assert verdict_text(many) == "UNKNOWN\n  void: x"
