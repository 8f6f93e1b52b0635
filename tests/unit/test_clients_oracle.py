"""The oracle of clients: what it accepts, and what it must not accept."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labctl.oracles.clients import Objective, Objectives, clients
from labctl.run.ledger import Line
from labctl.run.verdict import Outcome

PROMISED = Objectives(operations={"book": Objective(success=0.95, p95_s=1.0)}, slice_s=10, goodput_per_s=5)


def line(due: float, answer: Any = "ok", latency: float = 0.1, late: float = 0.0, **more: Any) -> Line:
    return Line(due_s=due, sent_s=due + late, latency_s=latency, operation="book", answer=answer, **more)


def steady(**changed: Any) -> list[Line]:
    """A minute of ten requests a second."""
    return [line(n / 10, **changed) for n in range(600)]


def judged(lines: list[Line], begin: float = 0, end: float = 60) -> Any:
    return clients(lines, PROMISED, begin, end)


def test_a_service_that_is_well() -> None:
    found = judged(steady())
    assert (found.outcome, found.reasons, found.aspect) == (Outcome.PASS, (), "objective")
    assert found.measures == {
        "requests": 600, "book_success": 1.0, "book_p95_s": 0.1, "goodput_per_s": 10.0, "wrong_reads": 0,
    }  # fmt: skip


def test_no_is_an_answer() -> None:
    assert judged(steady(answer="refused")).outcome is Outcome.PASS


@pytest.mark.parametrize("answer", ["error", "timeout", "unreachable"])
def test_an_outage_of_a_second_is_not_hidden_by_a_minute(answer: str) -> None:
    lines = [line(n / 10, answer if 300 <= n < 310 else "ok") for n in range(600)]
    found = judged(lines)
    assert found.measures["book_success"] > 0.98, "over the whole minute it would pass"
    assert found.outcome is Outcome.FAIL
    assert found.reasons == ("book at 30-40 s: success 90.0%, promised 95.0%",)


def test_waiting_to_be_sent_is_latency_too() -> None:
    assert judged(steady(late=1.5)).reasons[0] == "book at 0-10 s: 95 of 100 within 1.60 s, promised 1 s"


def test_a_service_that_answers_nothing_is_as_late_as_can_be() -> None:
    found = judged(steady(answer="timeout"))
    assert found.measures["book_p95_s"] == math.inf and found.measures["goodput_per_s"] == 0


def test_too_little_asked_and_too_little_sent_are_unknown() -> None:
    assert judged([]).outcome is Outcome.UNKNOWN
    few = [line(float(n)) for n in range(0, 60, 5)]
    assert clients(few, PROMISED.model_copy(update={"goodput_per_s": 0}), 0, 60).outcome is Outcome.UNKNOWN
    lines = [line(n / 10, "dropped" if n % 20 == 0 else "ok") for n in range(600)]
    assert judged(lines).outcome is Outcome.UNKNOWN
    assert "did not send 30 of 600" in judged(lines).reasons[0]


def test_stopping_the_load_is_no_way_to_pass() -> None:
    found = judged([n for n in steady() if n.due_s < 30])
    assert found.outcome is Outcome.UNKNOWN and "book at 30-40 s: only 0 requests" in found.reasons


def test_goodput_of_all_operations_together() -> None:
    other = [n.model_copy(update={"operation": "search", "answer": "error"}) for n in steady()]
    lines = [*other, *(n for n in steady() if n.due_s * 10 % 4 < 1)]
    found = judged(lines)
    assert found.outcome is Outcome.FAIL and found.reasons == ("goodput 2.50/s of 12.50/s, promised 5/s",)
    asked = judged([n for n in steady() if n.due_s * 10 % 4 < 1])
    assert asked.outcome is Outcome.UNKNOWN, "fewer were asked than are promised"


def test_a_read_that_saw_what_cannot_be() -> None:
    lines = [*steady(), line(59, key="k", value="1"), line(59, key="k", saw="0")]
    found = judged(lines)
    assert found.outcome is Outcome.FAIL
    assert "1 reads saw what cannot be, such as wrong_read: k has 0, it was answered 1" in found.reasons


def test_only_the_window_counts() -> None:
    lines = [line(n / 10, "error" if n < 100 else "ok") for n in range(600)]
    assert judged(lines, 10, 60).outcome is Outcome.PASS
    assert judged(lines, 0, 60).outcome is Outcome.FAIL
