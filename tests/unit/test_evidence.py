"""Samples of hits: bounded, in order, readable whatever a process calls itself, and the same behind the wire."""

from __future__ import annotations

import os

import pytest
from google.protobuf import json_format

from node_agent.api import agent_pb2 as pb
from node_agent.api import convert
from node_agent.fault import MAX_SAMPLES, Evidence, Hit
from tests.unit.agents import HIT, view


def hit(sequence: int, **changes: object) -> Hit:
    return Hit.model_validate({**HIT.model_dump(), "sequence": sequence, **changes})


def test_the_latest_hits_are_kept_oldest_first() -> None:
    evidence = Evidence(armed=True, hits=90, samples=tuple(hit(n) for n in reversed(range(90))))
    assert [one.sequence for one in evidence.samples] == list(range(90 - MAX_SAMPLES, 90))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"postgres: writer", "postgres: writer"),
        ("zażółć".encode(), "zażółć"),
        (b"/srv/\xff\xfe", r"/srv/\xff\xfe"),
        (b"a\nw1  forged  active\x1b[2J", r"a\nw1  forged  active\x1b[2J"),
    ],
)
def test_any_bytes_are_readable_and_cross_the_wire(raw: bytes, shown: str) -> None:
    one = hit(1, comm=os.fsdecode(raw), where=os.fsdecode(raw))
    assert (one.comm, one.where) == (shown, shown)
    there = view("inj-1", evidence=Evidence(armed=True, hits=1, samples=(one,)))
    assert convert.injection_view(convert.injection_message(there)) == there


def test_json_text_carries_what_grpc_carries() -> None:
    there = view("inj-1")
    assert there.evidence is not None and there.evidence.samples == (HIT,)
    text = json_format.MessageToJson(convert.injection_message(there))
    assert convert.injection_view(json_format.Parse(text, pb.Injection())) == there


def test_an_agent_that_knows_no_samples_is_understood() -> None:
    old = pb.Injection(id="inj-1", state="ACTIVE", evidence=pb.Evidence(armed=True, hits=3))
    found = convert.injection_view(old)
    assert found.evidence == Evidence(armed=True, hits=3)


@pytest.mark.parametrize("wrong", [{"sequence": -1}, {"sequence": 2**64}, {"pid": 2**32}, {"comm": None}])
def test_what_cannot_be_carried_is_no_hit(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        hit(**{"sequence": 1, **wrong})  # type: ignore[arg-type]
