"""What a database may contain, from what was asked and answered; a simulated service is the judge."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.run.ledger import Line, against, read_ledger, replay


def write(key: str, value: str, answer: Any = "ok", at: float = 0.0) -> Line:
    return Line(due_s=at, sent_s=at, latency_s=0.1, operation="write", answer=answer, key=key, value=value)


def read(key: str, saw: str, answer: Any = "ok") -> Line:
    return Line(due_s=0, sent_s=0, latency_s=0.1, operation="read", answer=answer, key=key, saw=saw)


def kinds(lines: list[Line], found: dict[str, str]) -> list[tuple[str, str]]:
    return [(p.kind, p.key) for p in against(replay(lines)[0], found)]


def test_answered_refused_and_unanswered_writes() -> None:
    lines = [write("a", "1"), write("b", "1", "refused"), write("c", "1", "timeout"), write("d", "1", "error")]
    for c in ({}, {"c": "1"}):
        assert kinds(lines, {"a": "1", **c}) == []
    assert kinds(lines, {}) == [("lost", "a")]
    assert kinds(lines, {"a": "2", "b": "1", "x": "9"}) == [("stale", "a"), ("phantom", "b"), ("phantom", "x")]
    assert str(against(replay(lines)[0], {})[0]) == "lost: a has nothing, it was answered 1"


def test_what_was_possible_ends_with_the_next_answer_or_a_read() -> None:
    unsure = [write("a", "1"), write("a", "2", "timeout")]
    assert kinds(unsure, {"a": "1"}) == kinds(unsure, {"a": "2"}) == []
    assert kinds([*unsure, read("a", "2")], {"a": "1"}) == [("stale", "a")]
    assert kinds([*unsure, write("a", "3")], {"a": "2"}) == [("stale", "a")]
    assert kinds([*unsure, write("a", "")], {"a": "1"}) == [("phantom", "a")], "cancelled, and there again"
    assert kinds([write("a", "1"), write("a", "", "unreachable")], {}) == []


def test_a_read_that_saw_what_cannot_be() -> None:
    _, wrong = replay([write("a", "1"), read("a", ""), read("a", "", "timeout"), read("never", "1")])
    assert [(p.kind, p.key, p.found) for p in wrong] == [("wrong_read", "a", ""), ("wrong_read", "never", "1")]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_an_honest_service_is_never_accused_and_one_that_forgets_always(seed: int, forgets: bool) -> None:
    rng = random.Random(seed)
    store: dict[str, str] = {}
    acked: dict[str, str] = {}
    lines = []
    for number in range(rng.randint(1, 40)):
        key, value = f"k{rng.randrange(4)}", rng.choice(("", str(number)))
        answer = rng.choice(("ok", "ok", "ok", "refused", "error", "timeout", "unreachable", "dropped"))
        done = answer == "ok" or (answer in ("error", "timeout", "unreachable") and rng.random() < 0.5)
        if done:
            store[key] = value
        if answer == "ok":
            acked[key] = value
        elif answer not in ("refused", "dropped"):
            acked.pop(key, None)
        lines.append(write(key, value, answer))
        if rng.random() < 0.3:
            lines.append(read(key, store.get(key, "")))
    possible, wrong = replay(lines)
    found = {key: value for key, value in store.items() if value}
    sure = [key for key, value in acked.items() if value]
    if forgets and sure:
        victim = rng.choice(sorted(sure))
        del found[victim]
        assert [(p.kind, p.key) for p in against(possible, found)] == [("lost", victim)]
    else:
        assert (against(possible, found), wrong) == ((), ())


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    lines = [write("a", "1"), read("a", "1")]
    file = tmp_path / "ledger.jsonl"
    file.write_text("".join(line.model_dump_json() + "\n" for line in lines) + '{"due_s": 1')
    assert list(read_ledger(file)) == lines
