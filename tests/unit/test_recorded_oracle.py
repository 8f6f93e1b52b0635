"""Verdicts of oracles on what they saw of real servers: well, and broken in one way after the other.

Each file of `oracle_evidence` says what it is about; it has what was seen at the gate, the window with the ledger,
and scenes: what was seen later, and what every oracle has to say of it; those that are not named have to pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labctl.oracles.booking import standard
from labctl.run.oracle import Sight, Window, judge_all
from labctl.run.verdict import Outcome

EVIDENCE = sorted((Path(__file__).parent / "oracle_evidence").glob("*.json"))
ORACLES = {oracle.name: oracle for oracle in standard()}
RECORDED: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in EVIDENCE}
SCENES = [(file, scene) for file, found in RECORDED.items() for scene in found["scenes"]]


@pytest.mark.parametrize(("file", "name"), SCENES)
def test_a_scene(file: str, name: str) -> None:
    recorded = RECORDED[file]
    scene, window = recorded["scenes"][name], Window.model_validate(recorded["window"])
    gate, after = Sight.model_validate(recorded["before"]), Sight.model_validate(scene["after"])
    for oracle in (ORACLES[seen] for seen in after.seen):
        (found,) = judge_all([oracle], gate, after, window)
        reasons = scene["reasons"].get(oracle.name)
        assert found.outcome is (Outcome.FAIL if reasons else Outcome.PASS), (oracle.name, found.reasons)
        assert list(found.reasons) == (reasons or []), oracle.name


def test_what_was_recorded() -> None:
    for recorded in RECORDED.values():
        assert recorded["scenes"]["well"]["reasons"] == {}
    seen = {name for recorded in RECORDED.values() for name in recorded["before"]["seen"]}
    assert seen == {*ORACLES} - {"clients"}, "each that looks"
    servers = RECORDED["servers"]
    rejected = {name for scene in servers["scenes"].values() for name in scene["reasons"]}
    assert rejected == set(servers["before"]["seen"]), "each has failed in a scene"
