"""Diagnoses: closed words, and how near they come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from labctl.run.diagnosis import Diagnosis, DiagnosisError, Triple, Vocabulary, grade, parse_diagnosis

WORDS = Vocabulary(
    component=("w2 data disk", "w2 lab network", "database"),
    mechanism=("unreadable sectors", "slow", "full"),
    scope=("one table", "whole node"),
)
DISK = Triple(component="w2 data disk", mechanism="unreadable sectors", scope="one table")
WIDE = DISK.model_copy(update={"scope": "whole node"})
SLOW = Triple(component="w2 data disk", mechanism="slow", scope="whole node")
NET = Triple(component="w2 lab network", mechanism="slow", scope="whole node")


def said(*triples: Triple, healthy: bool = False) -> Diagnosis:
    return Diagnosis(triples=triples, healthy=healthy)


@pytest.mark.parametrize(
    ("found", "cause", "graded"),
    [
        (said(DISK), {DISK}, "exact"),
        (said(DISK, NET), {NET, DISK}, "exact"),
        (said(NET), {NET, DISK}, "partial"),
        (said(WIDE), {DISK}, "partial"),
        (said(SLOW), {DISK}, "wrong"),
        (said(DISK, NET), {DISK}, "wrong"),
        (said(healthy=True), {DISK}, "wrong"),
        (said(healthy=True), set(), "exact"),
        (said(DISK), set(), "wrong"),
        (None, {DISK}, "none"),
        (None, set(), "none"),
    ],
)
def test_grades(found: Diagnosis | None, cause: set[Triple], graded: str) -> None:
    assert grade(found, frozenset(cause)) == graded


def test_naming_everything_is_wrong() -> None:
    everything = tuple(
        Triple(component=c, mechanism=m, scope=s)
        for c in WORDS.component[:2] for m in WORDS.mechanism[:2] for s in WORDS.scope
    )  # fmt: skip
    assert grade(said(*everything), frozenset({DISK})) == "wrong"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("{", "not JSON"),
        ([], "diagnosis: "),
        ({}, "give triples, or healthy"),
        ({"triples": [], "healthy": False}, "give triples, or healthy"),
        ({"triples": [DISK.model_dump()], "healthy": True}, "give triples, or healthy"),
        ({"healthy": True, "sure": 1}, "sure: Extra inputs"),
        ({"triples": [{"component": "w2 data disk"}]}, "triples.0.mechanism: Field required"),
        ({"triples": [{**DISK.model_dump(), "component": "moon"}]},
         "component: 'moon' is no word of this problem; allowed: w2 data disk, w2 lab network, database"),
        ({"triples": [DISK.model_dump()] * 17}, "triples: "),
    ],
)  # fmt: skip
def test_what_says_nothing_is_told_in_one_line(data: Any, reason: str) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(DiagnosisError, match=r"^[^\n]*$") as told:
        parse_diagnosis(text, WORDS)
    assert reason in str(told.value)


def test_words_of_a_problem_are_each_there_once_and_more_than_one() -> None:
    assert parse_diagnosis(json.dumps({"triples": [DISK.model_dump()]}), WORDS) == said(DISK)
    for wrong in (("a", "a"), ("a",), ()):
        with pytest.raises(ValidationError):
            WORDS.model_validate({**WORDS.model_dump(), "scope": wrong})
