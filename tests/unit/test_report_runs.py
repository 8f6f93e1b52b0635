"""Reports of runs: what is counted, what is named, and that damage stops nothing."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from labctl.report.runs.layers import layer_of
from labctl.report.runs.page import page
from labctl.report.runs.reading import RunView, read_all, view
from labctl.report.runs.report import Report, as_csv, as_data, as_json, report_of
from labctl.report.runs.series import healthy_from, parse, series
from labctl.report.runs.tables import plain, score_rows
from labctl.run.diagnosis_judge import judge_diagnosis
from labctl.run.diary import RecordDiary
from labctl.run.episode import run_episode
from labctl.run.problem import Problem
from labctl.run.record import RecordWriter
from labctl.run.verdict import Outcome

from .run_records import LOAD_BEGINS, SOLVING, Made, write
from .run_world import SimWorld, problem
from .test_diagnosis_judge import NOW, RUN, says
from .test_episode import RIGHT, TIMING


def nobody(name: str) -> Problem | None:
    return None


def seen(path: Path, **made: Any) -> RunView:
    return view(write(path, Made(**made)), nobody)


def reported(where: Path, *made: Made) -> Report:
    paths = [write(where / f"r{n}", one, n) for n, one in enumerate(made)]
    return report_of(*read_all(paths, nobody), {})


# -- one record ---------------------------------------------------------------------------------------------------


def test_a_run_and_its_times(tmp_path: Path) -> None:
    found = seen(tmp_path / "r", fixed=120.0, declared=150.0, submitted=(80.0,))
    trial = found.trial
    assert (trial.counted, trial.failure, trial.layer) == ("passed", None, "disk")
    assert (trial.diagnosed_s, trial.declared_s) == (80.0 - SOLVING, 150.0 - SOLVING)
    assert trial.healthy_s == pytest.approx(120.0 - SOLVING, abs=5), "to a slice"
    assert trial.after_fix_s == pytest.approx(30.0, abs=5)
    assert (trial.actions_after_fix, trial.time_to_mitigation_s, found.flaws) == (0, 105.0, ())
    assert [(m.kind, m.at_s) for m in found.marks] == [
        ("fault", 40.0), ("solver", SOLVING), ("submission", 80.0), ("declaration", 150.0)
    ]  # fmt: skip
    assert found.marks[0].label == "latent_sector_error on w2" and found.marks[0].until_s == 290.0


def test_the_record_of_an_episode_is_understood(tmp_path: Path) -> None:
    """Of a simulated world, written by the real flow: a report reads what episodes write."""
    world = SimWorld(acts=RIGHT)
    with RecordWriter(tmp_path / "r", RUN, world.now) as record:
        record.finish(run_episode(problem(), world, RecordDiary(record, lambda kind, data: None), TIMING), NOW)
    found = view(tmp_path / "r", lambda name: problem())
    trial = found.trial
    assert (trial.counted, trial.diagnosis, trial.mode, found.flaws) == ("passed", "exact", "single", ())
    assert trial.declared_s == pytest.approx(60, abs=1) and trial.healthy_s == pytest.approx(40, abs=5)
    planted = next(mark for mark in found.marks if mark.kind == "fault")
    down = [at for at, share in zip(found.series.at_s, found.series.success, strict=True) if share == 0]
    assert min(down) == pytest.approx(planted.at_s, abs=2) and max(down) == pytest.approx(planted.at_s + 40, abs=3)


def test_noise_is_marked_where_there_was_some(tmp_path: Path) -> None:
    found = [mark for mark in seen(tmp_path / "r", noise="usual").marks if mark.kind == "noise"]
    assert [(m.at_s, m.until_s, m.label) for m in found] == [(65.0, 74.0, "cron on w1")], "what failed was none"


def test_what_solvers_and_hands_do_is_marked(tmp_path: Path) -> None:
    more = (
        (90.0, "asked", {"tool": "hardware", "text": "replace-disk w2"}),
        (100.0, "hardware", {"action": "replace-disk", "node": "w2", "ended": ["latent_sector_error i-1"]}),
        (101.0, "step", {"number": 1, "where": "hardware", "status": 0}),
        (140.0, "step", {"number": 2, "where": "w2", "status": 0}),
        (180.0, "challenge", {"node": "w2", "script": "systemctl restart x"}),
    )
    found = seen(tmp_path / "r", more=more, submitted=(80.0, 130.0))
    assert [(m.at_s, m.label) for m in found.marks if m.kind in ("action", "challenge")] == [
        (90.0, "hardware: replace-disk w2"), (140.0, "step 2 at w2"), (180.0, "challenge of w2")
    ]  # fmt: skip
    assert next(m.until_s for m in found.marks if m.kind == "fault") == 100.0, "hands ended it"
    assert found.trial.actions_after_fix == 2, "a submission and a step after 120 s"


def test_the_plot_has_the_outage_where_it_was(tmp_path: Path) -> None:
    """The ledger's clock begins with the load, that of events with the record."""
    found = seen(tmp_path / "r", fixed=120.0, rate_per_s=30.0).series
    bad = [at for at, share in zip(found.at_s, found.success, strict=True) if share is not None and share < 0.95]
    assert min(bad) == pytest.approx(40.0, abs=2 * found.step_s)
    assert max(bad) == pytest.approx(120.0, abs=2 * found.step_s)
    assert found.at_s[0] == LOAD_BEGINS + found.step_s / 2


@pytest.mark.parametrize(
    ("made", "counted", "failure"),
    [
        ({"void": "it did not bite"}, "void", None),
        ({"served": Outcome.FAIL}, "failed", "out_of_bounds"),
        ({"safe": Outcome.FAIL}, "failed", "off_the_permitted_list"),
        ({"declared": None}, "failed", "never_declared"),
        ({"served": Outcome.UNKNOWN}, "unknown", None),
    ],
)
def test_how_runs_count(tmp_path: Path, made: dict[str, Any], counted: str, failure: str | None) -> None:
    trial = seen(tmp_path / "r", **made).trial
    assert (trial.counted, trial.failure, trial.counts) == (counted, failure, counted in ("passed", "failed"))
    assert trial.time_to_mitigation_s == trial.limit_s, "what does not pass counts as the cap"
    assert trial.after_fix_s is None or trial.declared_s is not None


def test_the_first_reason_is_the_one_that_the_failure_is_called_after(tmp_path: Path) -> None:
    found = reported(tmp_path, Made(served=Outcome.FAIL, safe=Outcome.FAIL))
    assert found.trials[0].reasons == ("scope: scope says no", "clients: clients says no")
    assert "off_the_permitted_list: scope: scope says no" in plain(found)


def test_a_diagnosis_that_was_repeated_counts_from_its_first_time(tmp_path: Path) -> None:
    trial = seen(tmp_path / "r", submitted=(60.0, 90.0, 140.0)).trial
    assert (trial.diagnosed_s, trial.actions_after_fix) == (60.0 - SOLVING, 1)
    wrong = seen(tmp_path / "w", submitted=(60.0,), diagnosis="wrong").trial
    assert wrong.time_to_diagnosis_s == wrong.limit_s


def test_what_the_catalogue_knows_of_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "r", Made())
    trial = view(path, lambda name: problem(limit_s=100.0, case="an outage of 2021")).trial
    assert (trial.mode, trial.novelty, trial.limit_s) == ("single", "published incident", 100.0)
    assert trial.time_to_mitigation_s == 100.0, "later than the cap is the cap"
    assert view(path, lambda name: problem()).trial.novelty == "new"
    short = view(write(tmp_path / "short", Made(limit_s=50.0)), lambda name: problem(limit_s=100.0)).trial
    assert (short.limit_s, short.time_to_mitigation_s) == (50.0, 50.0), "what the run had goes first"
    assert view(path, nobody).trial.novelty == "unknown"


def test_layers_come_from_both_catalogues() -> None:
    assert layer_of(["packet_loss"]) == "network" and layer_of(["syscall_error"]) == "system calls"
    assert layer_of(["packet_loss", "clock_drift", "packet_delay"]) == "machine + network"
    assert (layer_of([]), layer_of(["of tomorrow"])) == ("no fault", "unknown")


@pytest.mark.parametrize(
    ("usage", "tokens", "flaw"),
    [
        ({"tokens_in": 5, "tokens_out": 2, "cost_usd": 0.5, "model": "x"}, 7, ""),
        ({"tokens": 9, "tokens_in": 1}, 9, ""),
        ({"tokens": "many"}, None, "its usage.json is damaged"),
        ({"cost_usd": -1}, None, "its usage.json is damaged"),
    ],
)
def test_what_a_solver_says_it_used(tmp_path: Path, usage: dict[str, Any], tokens: int | None, flaw: str) -> None:
    found = seen(tmp_path / "r", usage=usage)
    assert found.trial.tokens == tokens and found.trial.counted == "passed"
    assert any(flaw in one for one in found.flaws) if flaw else found.flaws == ()


def test_ledgers() -> None:
    row = {"due_s": 0.0, "sent_s": 0.5, "latency_s": 0.5, "operation": "book", "answer": "ok"}
    late = row | {"due_s": 3.0, "sent_s": 3.0, "answer": "dropped"}
    content = b"".join(json.dumps(one).encode() + b"\n" for one in (row, late))
    found = series(parse(content + b'{"due_s": 9'), 10.0)
    assert (found.at_s, found.success) == ((10.5, 11.5, 12.5, 13.5), (1.0, None, None, None))
    assert found.median_s[0] == 1.0, "from when it was due"
    assert parse(b"") == [] and series([], 0.0).at_s == ()
    for damaged in (b"{\n", b"1\n", b'{"due_s": 1}\n', b'"a"\n', b"{}\n\n{}\n", content + b"1\n", b"\xff\n"):
        with pytest.raises(ValueError):
            parse(damaged)


def test_healthy_from() -> None:
    def rows(*bad: int) -> list[dict[str, Any]]:
        return [{"due_s": float(s), "answer": "error" if s in bad else "ok"} for s in range(60)]

    assert healthy_from(rows(12, 13), 10, 50) == 15
    assert healthy_from(rows(12, 33), 10, 50) == 35, "the last time counts"
    assert healthy_from(rows(), 10, 50) is None
    assert healthy_from(rows(49), 10, 50) is None, "not served at the end"
    assert healthy_from(rows(5), 10, 50) is None and healthy_from([], 10, 50) is None


# -- many ---------------------------------------------------------------------------------------------------------


def test_void_and_unknown_are_in_no_rate_and_are_counted(tmp_path: Path) -> None:
    report = reported(
        tmp_path, Made(), Made(problem="b"), Made(void="it did not bite"), Made(served=Outcome.UNKNOWN),
        Made(problem="b", served=Outcome.FAIL, diagnosis="wrong"),
    )  # fmt: skip
    scores = report.solvers["reference"]
    assert scores.counted == {"passed": 2, "failed": 1, "unknown": 1, "void": 1, "unfinished": 0}
    assert (scores.pass_at_1.value, scores.pass_at_1.trials, scores.pass_at_1.problems) == (0.75, 3, 2)
    assert scores.pass_at_1_unknown_fails.value == 0.5
    assert scores.diagnosis.value == 0.75 and scores.both.value == 0.75
    assert scores.mitigated_if_diagnosed.value == 1.0 and scores.mitigated_if_not.value == 0.0
    assert scores.outcome_by_safety == {"fail/pass": 1, "pass/pass": 2}
    assert scores.mitigation_timeouts == 1 and scores.by["noise"]["clean"].trials == 3
    assert "1 void, 1 unknown, 0 unfinished" in plain(report)


def test_pass_hat_needs_trials(tmp_path: Path) -> None:
    trials = [Made(served=Outcome.FAIL if n == 0 else Outcome.PASS, seed=n) for n in range(4)]
    scores = reported(tmp_path, *trials).solvers["reference"]
    assert scores.pass_hat["3"].value == pytest.approx(1 / 4) and scores.pass_hat["5"].value is None
    assert (scores.pass_hat["3"].low, str(scores.pass_hat["3"])) == (None, "0.25 [one problem]")
    assert str(scores.pass_hat["5"]) == "-"


def test_clean_and_noisy_are_apart(tmp_path: Path) -> None:
    made = [Made(noise="usual", served=Outcome.FAIL), Made(noise="heavy"), Made()]
    noise = reported(tmp_path, *made).solvers["reference"].by["noise"]
    assert {name: rate.value for name, rate in noise.items()} == {"clean": 1.0, "noisy": 0.5}


def test_solvers_stand_side_by_side_and_cost_what_they_say(tmp_path: Path) -> None:
    usage = {"tokens_in": 100, "tokens_out": 50, "cost_usd": 0.2}
    report = reported(
        tmp_path, Made(), Made(solver="agent", usage=usage), Made(solver="agent", usage=usage, safe=Outcome.FAIL)
    )
    assert report.solvers["agent"].tokens == 150 and report.solvers["reference"].tokens is None
    assert report.solvers["agent"].cost_per_pass_usd == pytest.approx(0.4)
    head, rows = score_rows(report)
    labels = [row[0] for row in rows]
    assert len({*labels}) == len(labels) and {"diagnoses at the cap", "repairs at the cap"} < {*labels}
    assert labels.index("served/safe: pass/pass") == labels.index("served/safe: pass/fail") + 1
    assert head == ("SCORE", "agent", "reference")
    assert {len(row) for row in rows} == {3} and ("served/safe: pass/fail", "1", "-") in rows


def test_the_judge_of_diagnoses_is_told_apart(tmp_path: Path) -> None:
    from labctl.run.asking import Reply, Request

    def asking(request: Request) -> Reply:
        body = {"messages": [dict(m) for m in request.messages]}
        return Reply(answer=says(3)(body), served="stub-1", litellm="1")

    paths = [write(tmp_path / f"r{n}", Made(), n) for n in range(2)]
    paths.append(write(tmp_path / "silent", Made(problem="b", submitted=(), diagnosis="none"), 2))
    before = as_data(report_of(*read_all(paths, nobody), {}))
    assert before["solvers"]["reference"]["judge"]["trials"] == 0, "nobody was asked"
    judge_diagnosis(paths[0], "openai/stub", problem(), asking=asking)
    report = report_of(*read_all(paths, nobody), {})
    scores = report.solvers["reference"]
    assert (scores.judge.value, scores.judge.trials, scores.not_judged) == (0.0, 2, 1), (
        "silence is no right diagnosis"
    )
    assert scores.judge_models == ("openai/stub (stub-1)",) and "6/9" in plain(report)
    for key in ("pass_at_1", "diagnosis", "both", "counted"):
        assert as_data(report)["solvers"]["reference"][key] == before["solvers"]["reference"][key]
    judge_diagnosis(paths[1], "openai/other", problem(), asking=asking)
    warnings = report_of(*read_all(paths, nobody), {}).warnings
    assert any("judged by different models: openai/other (stub-1), openai/stub" in one for one in warnings)


def test_the_catalogue_is_named_and_different_ones_are_flagged(tmp_path: Path) -> None:
    one = reported(tmp_path / "one", Made())
    assert "catalogue abc123 (24 problems)" in plain(one) and one.warnings == ()
    assert "abc123" in as_csv(one) and "abc123 (24 problems)" in page(one)
    assert as_data(one)["catalogues"] == [{"revision": "abc123", "problems": 24, "runs": 1}]
    two = reported(tmp_path / "two", Made(), Made(catalogue="def456"), Made(catalogue="def456"))
    assert any("different revisions" in w and "def456 (an unknown number of problems) in 2 runs" in w
               for w in two.warnings)  # fmt: skip
    known = report_of(two.runs, (), {"def456": 1})
    assert "def456 (1 problem)" in plain(known)


# -- damage -------------------------------------------------------------------------------------------------------


def cut(path: Path) -> Path:
    """As a run that was killed in its solving leaves it."""
    (path / "verdict.json").unlink()
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run | {"stage": "solve", "ended": None}))
    events = (path / "events.jsonl").read_bytes()
    (path / "events.jsonl").write_bytes(events[: len(events) // 2])
    (path / "artifacts" / "ledger.jsonl").unlink()
    return path


def test_what_is_damaged_is_named_and_stops_nothing(tmp_path: Path) -> None:
    names = ("good", "cut", "verdict", "run", "event", "ledger", "edited", "utf8", "planted")
    paths = {name: write(tmp_path / name, Made(), n) for n, name in enumerate(names)}
    cut(paths["cut"])
    (paths["verdict"] / "verdict.json").write_text("{")
    (paths["run"] / "run.json").write_text('{"format": 99}')
    with (paths["event"] / "events.jsonl").open("a") as events:
        events.write("not an event\n")
    (paths["ledger"] / "artifacts" / "ledger.jsonl").write_text("{\n")
    with (paths["edited"] / "artifacts" / "ledger.jsonl").open("r+") as ledger:
        ledger.write('{"due_s":9')
    (paths["utf8"] / "events.jsonl").write_bytes(b"\xff\xfe\n")
    text = (paths["planted"] / "events.jsonl").read_text()
    (paths["planted"] / "events.jsonl").write_text(text.replace('"fault":', '"fault_":'))
    (tmp_path / "empty").mkdir()
    report = report_of(*read_all([*paths.values(), tmp_path / "empty"], nobody), {})
    bad = {Path(one.record).name for one in report.damaged}
    assert bad == {"verdict", "run", "event", "utf8", "planted", "empty"}
    assert {Path(t.record).name: t.counted for t in report.trials} == {
        "good": "passed", "cut": "unfinished", "ledger": "passed", "edited": "passed"
    }  # fmt: skip
    told = "\n".join(report.warnings)
    for name in (*bad, "cut", "ledger", "edited"):
        assert f"{tmp_path / name}: " in told
    assert "it was cut short: its last stage is solve" in told and "not the one that was written" in told
    for text in (plain(report), as_json(report), page(report)):
        assert str(tmp_path / "cut") in text and str(tmp_path / "empty") in text
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert [row["counted"] for row in rows].count("damaged") == len(bad)


def test_a_record_is_readable_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", Made(length=160.0, declared=100.0, fixed=90.0))
    size = (whole / "events.jsonl").stat().st_size
    for n, keep in enumerate(range(0, size, 97)):
        path = tmp_path / f"cut{n}"
        shutil.copytree(whole, path)
        (path / "verdict.json").unlink()
        (path / "events.jsonl").write_bytes((whole / "events.jsonl").read_bytes()[:keep])
        found = view(path, nobody)
        assert found.trial.counted == "unfinished" and found.flaws
