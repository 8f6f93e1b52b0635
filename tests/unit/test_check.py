"""What problems prove about themselves: each claim, when it holds and when not; results that are kept."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any, cast

import pytest

from labctl.cli.main import main
from labctl.errors import LabError
from labctl.run import catalogue as the
from labctl.run import checking
from labctl.run.catalogue import Catalogue
from labctl.run.checking import Checked, Found, Results, claims_of, lost, wanted
from labctl.run.diagnosis import Vocabulary
from labctl.run.episode import Timing
from labctl.run.lookouts import LostNode
from labctl.run.pairs import CLASSES, coverage
from labctl.run.problem import Decoy, Planted, Problem, Script
from labctl.run.proving import pick
from labctl.run.telling import READING, names_in, on_paper, reader
from labctl.run.verdict import FailureClass, Finding, Outcome, Verdict
from node_agent.catalog import catalog as faults

from .run_world import BAD, ClientsOracle, Notes, SimWorld, problem
from .test_episode import RIGHT

WORDS = Vocabulary(
    component=("disk of w2", "network", "CPU", "clock"), mechanism=("unreadable", "slow", "gone", "full"),
    scope=("one table", "all of it", "one node", "one link"),
)  # fmt: skip
DECOY = Decoy(script=Script(title="restart"), fails_as="cause_left")


def proper(**changed: Any) -> Problem:
    return problem(**{"vocabulary": WORDS, "decoys": (DECOY,) * 3, **changed})


def good() -> Problem:
    decoys = tuple(
        Decoy(script=Script(title="x"), fails_as=cast("Any", c))
        for c in ("cause_left", "cause_left", "out_of_bounds")
    )  # fmt: skip
    return proper(decoys=decoys, alternative=Script(title="other"))


def said(**outcomes: Outcome) -> Verdict:
    aspects = ("objective", "cause", "integrity", "scope", "durability")
    findings = tuple(
        Finding(oracle=a, aspect=cast("Any", a), outcome=outcomes.get(a, Outcome.PASS), reasons=("so",))
        for a in aspects
    )  # fmt: skip
    return Verdict(findings=findings, declared=True, diagnosis="exact")


def test_papers() -> None:
    assert checking.papers(proper()) == ("yes", "")
    assert "2 decoys" in checking.papers(proper(decoys=(DECOY,) * 2))[1]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"statement": "latent_sector_error on w2"}, "statement says 'latent_sector_error'"),
        ({"title": "The disk is unreadable"}, "title has the mechanism 'unreadable'"),
        ({"name": "packet_loss"}, ""),
        ({"name": "disk_unreadable"}, "name has the mechanism 'unreadable'"),
        ({"vocabulary": problem().vocabulary}, "only 1 words of component are decoys"),
    ],
)
def test_papers_that_tell(changed: dict[str, Any], told: str) -> None:
    assert told in "; ".join(on_paper(proper(**changed)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kernel: dm-0: groundfault-x0a1b2c", ("groundfault-x0a1b2c",)),
        ("qdisc netem 8001: dev lan", ("netem",)),
        ("data: 0 2048 flakey 8:0 0", ("2048 flakey 8:0",)),
        ("medium_error medium_error", ("medium_error",)),
        ("groundfault-agent.service loaded active", ()),
        ("critical medium error, dev sda, sector 8", ()),
        ("net.netfilter.nf_conntrack_max the reboot", ()),
        ("xlatent_sector_errors", ()),
        ("sch_netem 24576 0 - Live 0x0000000000000000\ndm_mod 221184 9 dm_delay, Live 0x0\nlast", ()),
        ("[  393.018411] netem: version 1.3\nNov 30 06:57:17 w1 kernel: netem: version 1.3", ()),
        ("qdisc netem: version", ("netem",)),
    ],
)
def test_words_of_injectors(text: str, found: tuple[str, ...]) -> None:
    assert names_in(text) == found


def test_a_reader_looks_on_each_node_and_never_declares() -> None:
    script = reader(("w1", "w2"))
    assert script.steps == (("w1", READING), ("w2", READING)) and not script.declares
    assert not names_in(READING)


def test_what_doing_nothing_has_to_come_to() -> None:
    silent = said().model_copy(update={"declared": False})
    assert checking.nothing(proper(), silent)[0] == "no", "the service is well"
    broken = said(objective=Outcome.FAIL).model_copy(update={"declared": False})
    assert checking.nothing(proper(), broken) == ("yes", "")
    assert checking.nothing(proper(), said(objective=Outcome.UNKNOWN))[0] == "unknown"
    calm = proper(mode="no_fault", faults=(), cause=frozenset())
    assert checking.nothing(calm, silent) == ("yes", "")
    assert checking.nothing(calm, said(scope=Outcome.FAIL))[0] == "no"


def test_what_a_right_repair_has_to_come_to() -> None:
    assert checking.passes(said()) == ("yes", "")
    assert checking.passes(said(scope=Outcome.FAIL)) == ("no", "scope: so")
    assert checking.passes(said(scope=Outcome.UNKNOWN))[0] == "unknown"
    assert checking.passes(said().model_copy(update={"diagnosis": "partial"}))[0] == "no"


@pytest.mark.parametrize(
    ("expected", "aspect", "answer"),
    [
        ("cause_left", "cause", "yes"),
        ("cause_left", "scope", "no"),
        ("did_not_last", "objective", "yes"),
        ("out_of_bounds", "durability", "yes"),
        ("integrity", "integrity", "yes"),
        ("integrity", "", "no"),
    ],
)
def test_what_a_decoy_has_to_come_to(expected: FailureClass, aspect: str, answer: str) -> None:
    verdict = said(**{aspect: Outcome.FAIL}) if aspect else said()
    assert checking.decoy(expected, verdict)[0] == answer
    assert checking.decoy(expected, said(scope=Outcome.UNKNOWN))[0] == "unknown"


def gathered(world: SimWorld) -> Any:
    """What an episode gathered, and its ledger."""
    from labctl.run.episode import Shortcut, _Episode

    episode = _Episode(proper(), world, Notes(), TIMING, Shortcut())
    episode.through()
    episode.over()
    return episode.gathered, episode.lines


TIMING = Timing(hold_s=20, soak_s=30, settle_s=1, poll_s=0.5)


def test_a_lost_node() -> None:
    world = SimWorld(acts=RIGHT)
    found, lines = gathered(world)
    assert lost(proper(), world, found, lines) == ("yes", "")
    assert lost(proper(oracles=(ClientsOracle(),)), world, found, lines) == ("no", "no oracle looks at any node")
    with pytest.raises(LabError, match="w2 does not answer"):
        LostNode(world, "w2").sh("w2", "true")


# -- results ------------------------------------------------------------------------------------------------------


def result(claim: str, answer: str = "yes", revision: str = "a") -> Found:
    when = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return Found.model_validate(
        {"claim": claim, "answer": answer, "revision": revision, "catalogue": "c", "when": when}
    )


def test_what_is_checked_is_what_is_not_known() -> None:
    mine = proper(alternative=Script(title="other"))
    all_of_it = claims_of(mine)
    assert all_of_it == (
        "papers", "reference", "lost", "nothing", "tells", "alternative", "decoy:1", "decoy:2", "decoy:3"
    )  # fmt: skip
    known = Checked(problem="reads_fail").put(
        result("papers"),
        result("nothing", "unknown"),
        result("reference", "no"),
        result("decoy:1", revision="old"),
    )
    assert wanted(mine, known, "a", (), again=False) == (
        "lost", "nothing", "tells", "alternative", "decoy:1", "decoy:2", "decoy:3"
    )  # fmt: skip
    assert wanted(mine, known, "a", (), again=True) == all_of_it
    assert wanted(mine, known, "a", ("decoy",), again=False) == ("decoy:1", "decoy:2", "decoy:3")
    assert wanted(mine, known, "a", ("decoy:2", "papers"), again=True) == ("papers", "decoy:2")


def test_results_are_kept(tmp_path: Path) -> None:
    kept = Results(tmp_path / "deep" / "results.json")
    assert kept.read() == {}
    kept.put("reads_fail", result("papers"))
    kept.put("reads_fail", result("nothing", "no"))
    kept.put("another", result("papers"))
    found = kept.read()
    assert list(found) == ["another", "reads_fail"]
    assert {c: f.answer for c, f in found["reads_fail"].found.items()} == {"papers": "yes", "nothing": "no"}
    kept.path.write_text("{")
    with pytest.raises(LabError, match="is damaged"):
        kept.read()


def test_picking_goes_round() -> None:
    found = Catalogue({name: proper(name=name) for name in ("aaa", "bbb", "ccc")}, {}, "r", Path())
    assert [pick(found, 2, seed) for seed in range(3)] == [("aaa", "bbb"), ("ccc", "aaa"), ("bbb", "ccc")]
    assert pick(found, 9, 0) == ("aaa", "bbb", "ccc")
    with pytest.raises(LabError):
        pick(Catalogue({}, {}, "r", Path()), 1, 0)


# -- the command line ---------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(Catalogue, "revision_of", lambda self, name: "r1")
    monkeypatch.setattr(the, "catalogue", lambda: Catalogue({"reads_fail": good()}, {}, "rev", Path()))
    return tmp_path


def test_checking_papers_needs_no_lab(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check", "reads_fail", "--only", "papers")
    assert code == 2, "the other claims are not known"
    assert "reads_fail: papers ok (0 s)" in err
    assert [line.split() for line in out.splitlines()[:2]] == [
        ["PROBLEM", "PAPERS", "REFERENCE", "LOST", "NOTHING", "TELLS", "ALTERNATIVE", "DECOYS"],
        ["reads_fail", "ok", "-", "-", "-", "-", "-", "0", "of", "3"],
    ]
    assert out.endswith("problems rev (1 problems)\n")
    code, _, err = run(capsys, "check", "--all", "--only", "papers")
    assert err == "", "it is known already"


def test_the_status_of_a_check(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Results(mine / "groundfault" / "checks" / "results.json")
    kept.put("reads_fail", *(result(claim, revision="r1") for claim in claims_of(good())))
    assert run(capsys, "check", "reads_fail")[0] == 0
    kept.put("reads_fail", result("decoy:2", "no", "r1"))
    code, out, _ = run(capsys, "check", "reads_fail")
    assert code == 1 and "2 of 3" in out and "reads_fail: decoy:2 NO (0 s)" in out
    code, out, _ = run(capsys, "check", "reads_fail", "--json")
    data = json.loads(out)
    assert data["problems"]["reads_fail"]["decoy:2"]["answer"] == "no" and data["catalogue"] == "rev"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), "which problems?"),
        (("reads_fail", "--all"), "which problems?"),
        (("reads_fial",), "no problem called 'reads_fial'"),
        (("reads_fail", "--only", "magic"), "'magic' is no claim"),
    ],
)
def test_bad_words(argv: tuple[str, ...], text: str, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", *argv)
    assert code == 64 and text in err


def test_the_catalogue_on_the_command_line(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "problems")
    assert code == 0 and "reads_fail" in out and "rev (1 problems)" in out
    code, out, _ = run(capsys, "problems", "show", "reads_fail")
    assert code == 0 and "Some bookings cannot be read." in out
    assert "sectors of w2" not in out and "broken" not in out and "rewrite" not in out
    code, out, _ = run(capsys, "problems", "show", "reads_fail", "--spoil")
    assert "sectors of w2" in out and "fault: broken on w2" in out and "reference: rewrite" in out
    code, out, _ = run(capsys, "problems", "show", "reads_fail", "--json")
    data = json.loads(out)
    assert "spoiled" not in data and str(BAD) not in out and data["vocabulary"]["component"][0] == "disk of w2"


def test_pairs(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "problems", "pairs", "--json")
    data = json.loads(out)
    assert code == 0 and [one["name"] for one in data["classes"]] == [name for name, _ in CLASSES.values()]
    loss = faults()["packet_loss"]
    there = [
        Planted(fault=loss(), node="w1"), Planted(fault=loss(), node="w1"), Planted(fault=loss(), node="w2"),
        Planted(fault=loss.model_validate({"peers": ("10.77.0.3",)}), node="w2"),
    ]  # fmt: skip
    found = {one.name: one for one in coverage([problem(faults=tuple(there))], ("w1", "w2"), (("w1", "x"),))}
    network = found["network"]
    assert (network.curated, network.faults_used) == (3, 1) and network.pairs == 2 * network.faults
    assert sum(one.faults for one in found.values()) >= len(faults())
