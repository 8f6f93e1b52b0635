"""`labctl judge --diagnosis-model`: the record of a simulated episode, read by a model on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labctl.cli.main import main
from labctl.run.catalogue import Catalogue
from labctl.run.diary import RecordDiary
from labctl.run.episode import run_episode
from labctl.run.record import RecordWriter

from .model_server import ModelServer, serving
from .run_world import BAD, SimWorld, problem
from .test_diagnosis_judge import MODEL, NOW, RUN, says
from .test_episode import RIGHT, TIMING


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "record"
    world = SimWorld(acts=RIGHT)
    with RecordWriter(path, RUN, world.now) as writer:
        verdict = run_episode(problem(), world, RecordDiary(writer, lambda kind, data: None), TIMING)
        writer.finish(verdict, NOW)
    known = Catalogue({"reads_fail": problem()}, {}, "abc", Path())
    monkeypatch.setattr("labctl.run.catalogue.catalogue", lambda: known)
    return path


def test_a_model_reads_the_diagnosis_and_changes_nothing(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = (record / "verdict.json").read_bytes()
    assert main(["judge", str(record)]) == 0
    alone = capsys.readouterr().out
    assert "diagnosis, read by" not in alone
    with serving(ModelServer(says(5))) as model:
        for name, value in model.environment().items():
            monkeypatch.setenv(name, value)
        assert main(["judge", str(record), "--diagnosis-model", MODEL]) == 0, "it passes, whatever the model says"
        assert BAD.component in model.asked[0]["messages"][1]["content"]
    told = capsys.readouterr().out
    assert told.startswith(alone.rstrip())
    assert f"diagnosis, read by {MODEL} (stub-2026-11-30, fp_7): fail, 4/9: localization 0/3" in told
    assert "(900 tokens" in told and "  localization_1: no: so" in told
    monkeypatch.setenv("GROUNDFAULT_DIAGNOSIS_MODEL", MODEL)
    assert main(["--json", "judge", str(record)]) == 0, "nobody listens any more: it is in the record"
    data = json.loads(capsys.readouterr().out)["diagnosis_judge"]
    assert (data["outcome"], data["cached"], data["model"]) == ("fail", True, MODEL)
    assert main(["judge", str(record), "--ask-again"]) == 0
    assert "unknown\n  the judge gave no answer: " in capsys.readouterr().out.replace(" (0 tokens)", "")
    assert (record / "verdict.json").read_bytes() == verdict
