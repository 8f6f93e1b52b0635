"""Checking what problems prove about themselves, the whole of it, in a simulated world."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from labctl.run import proving
from labctl.run.catalogue import Catalogue
from labctl.run.checking import claims_of
from labctl.run.diary import RecordDiary
from labctl.run.episode import run_episode
from labctl.run.perform import LOG, Request
from labctl.run.problem import Problem
from labctl.run.proving import Prover
from labctl.run.record import RecordWriter, Run
from labctl.run.verdict import Verdict

from .run_world import SimWorld
from .test_check import TIMING, good
from .test_episode import RIGHT, around, healed

Acts = Callable[[], SimWorld]


def simulated(worlds: Mapping[str, Acts], log: str = "## a\n## b\n## c\n") -> Any:
    """A `perform` that plays in a simulated world."""
    asked: list[str] = []

    def perform(request: Request, site: object, tell: object) -> Verdict:
        asked.append(request.solver)
        world = worlds[request.solver]()
        run = Run(
            id="x", problem=request.problem.name, catalogue="c", solver=request.solver, seed=1, lab="sim",
            started=dt.datetime.now(dt.UTC),
        )  # fmt: skip
        with RecordWriter(request.record, run, lambda: world.clock) as record:
            record.artifact(LOG, log.encode())
            verdict = run_episode(request.problem, world, RecordDiary(record, lambda kind, data: None), TIMING)
            record.finish(verdict, dt.datetime.now(dt.UTC))
        return verdict

    perform.asked = asked  # type: ignore[attr-defined]
    return perform


class Site:
    """Three nodes that answer."""

    lab = "sim"

    def nodes(self) -> tuple[Any, ...]:
        from labctl.lab.model import Node

        return tuple(Node(name=name, address="127.0.0.1") for name in ("w1", "w2", "w3"))


GOOD: Mapping[str, Acts] = {
    "none": SimWorld,
    "reference": lambda: SimWorld(acts=RIGHT),
    "alternative": lambda: SimWorld(acts=RIGHT),
    "decoy:1": lambda: SimWorld(acts=((5.0, SimWorld.declare),)),
    "decoy:2": lambda: SimWorld(acts=((5.0, around), (6.0, SimWorld.declare))),
    "decoy:3": lambda: SimWorld(acts=((5.0, healed), (6.0, SimWorld.declare))),
}


def prover(tmp_path: Path, mine: Problem, monkeypatch: pytest.MonkeyPatch, play: Any) -> Prover:
    monkeypatch.setattr(proving, "perform", play)
    monkeypatch.setattr(Catalogue, "revision_of", lambda self, name: "r1")
    monkeypatch.setattr(proving, "Shells", lambda nodes: _Closing())
    return Prover(cast("Any", Site()), Catalogue({mine.name: mine}, {}, "r", Path()), tmp_path, TIMING)


class _Closing(SimWorld):
    def close(self) -> None:
        pass


def test_a_good_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = simulated(GOOD)
    mine = prover(tmp_path, good(), monkeypatch, play)
    found = list(mine.check("reads_fail", claims_of(good())))
    assert {one.claim: (one.answer, one.why) for one in found} == dict.fromkeys(claims_of(good()), ("yes", ""))
    assert play.asked == ["reference", "none", "alternative", "decoy:1", "decoy:2", "decoy:3"], "each once"
    assert all(one.revision == "r1" and one.catalogue == "r (1 problems)" for one in found)
    assert (tmp_path / "reads_fail" / "decoy-1" / "verdict.json").exists()


@pytest.mark.parametrize(
    ("solver", "instead", "wrong"),
    [
        ("reference", "none", {"reference": "no", "lost": "unknown"}),
        ("decoy:1", "reference", {"decoy:1": "no"}),
        ("decoy:1", "decoy:3", {"decoy:1": "no"}),
        ("none", "reference", {"nothing": "no"}),
        ("alternative", "decoy:2", {"alternative": "no"}),
    ],
)
def test_a_bad_problem(
    solver: str, instead: str, wrong: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = simulated({**GOOD, solver: GOOD[instead]})
    found = prover(tmp_path, good(), monkeypatch, play).check("reads_fail", claims_of(good()))
    assert {one.claim: one.answer for one in found if one.answer != "yes"} == wrong


def test_a_node_that_says_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = simulated(GOOD, log="## a\n## b\n## c\nqdisc netem 1: loss 5%\n")
    found = list(prover(tmp_path, good(), monkeypatch, play).check("reads_fail", ("tells",)))
    assert [(one.claim, one.answer, one.why) for one in found] == [("tells", "no", "the nodes say: netem")]
    silent = simulated(GOOD, log="")
    found = list(prover(tmp_path, good(), monkeypatch, silent).check("reads_fail", ("tells",)))
    assert [one.answer for one in found] == ["unknown"]


def test_what_nobody_knows_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [SimWorld(broken=True), SimWorld(acts=RIGHT)]
    play = simulated({"reference": lambda: worlds.pop(0)})
    found = list(prover(tmp_path, good(), monkeypatch, play).check("reads_fail", ("reference",)))
    assert [one.answer for one in found] == ["yes"] and len(play.asked) == 2


def test_who_ends_it_ends_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episode recovers, as ever; it is not tried again, and the other claims are left alone."""

    def ctrl_c(world: SimWorld) -> None:
        raise KeyboardInterrupt

    world = SimWorld(acts=((5.0, ctrl_c),))
    play = simulated({"reference": lambda: world, "none": SimWorld})
    found = prover(tmp_path, good(), monkeypatch, play).check("reads_fail", ("reference", "nothing"))
    with pytest.raises(KeyboardInterrupt):
        list(found)
    assert play.asked == ["reference"] and "recover" in world.log
