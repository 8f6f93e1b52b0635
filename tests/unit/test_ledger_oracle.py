"""The oracle of the ledger: what a database may have, what it must have, and what it must not."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from labctl.oracles.ledger import Ledger, may_have
from labctl.run.ledger import Line, against, replay
from labctl.run.oracle import Window
from labctl.run.verdict import Outcome

from .lookouts import Told

LEDGER = Ledger()


def line(operation: str, key: str, value: str | None, sent: float, answer: Any = "ok", **more: Any) -> Line:
    fields = {"latency_s": 0.2, **more}
    return Line(due_s=sent, sent_s=sent, operation=operation, answer=answer, key=key, value=value, **fields)


LINES = (
    line("book", "b-1", "7/1", 10),
    line("book", "b-2", "7/1", 11),
    line("change", "b-2", "8/2", 12),
    line("book", "b-3", "8/1", 13),
    line("cancel", "b-3", "", 14),
    line("book", "b-4", "8/1", 15, "refused"),
    line("book", "b-5", "7/1", 16, "timeout", latency_s=5),
    line("book", "b-6", "7/1", 69.9),
    line("book", "b-7", "7/1", 75),
)
WINDOW = Window(begin_s=40, looked_s=70, end_s=80, lines=LINES)
SEEN: Any = {
    "writable": ["w2"], "errors": {},
    "bookings": [["b-1", "7/1", "1", "booked"], ["b-2", "8/2", "2", "booked"], ["b-3", "", "2", "cancelled"],
                 ["old", "7/1", "1", "booked"]],
    "outbox": [["b-1", "1", "booked", "t", "50"], ["b-2", "1", "booked", "t", "49"],
               ["b-2", "2", "changed", "t", "48"],
               ["b-3", "1", "booked", "t", "47"], ["b-3", "2", "cancelled", "f", "4"],
               ["old", "1", "booked", "t", "999"]],
    "seats": [["7", "98", "100", "2"], ["8", "99", "100", "1"]],
    "confirmed": ["b-1:1", "b-2:1", "b-2:2", "b-3:1", "old:1"],
}  # fmt: skip


def seen(**parts: Any) -> Any:
    return {**copy.deepcopy(SEEN), **parts}


def judged(after: Any, before: Any = SEEN) -> Any:
    return LEDGER.judge(before, after, WINDOW)


def test_what_was_answered_is_there_and_the_rest_may_be() -> None:
    """b-4 was refused; b-5, b-6 and b-7 may be there: no answer, or one that came while oracles looked."""
    assert judged(SEEN).outcome is Outcome.PASS, judged(SEEN).reasons
    more = [["b-5", "7/1", "1", "booked"], ["b-6", "7/1", "1", "booked"], ["b-7", "7/1", "1", "booked"]]
    outbox = [[row[0], "1", "booked", "f", "1"] for row in more]
    full = seen(bookings=[*SEEN["bookings"], *more], outbox=[*SEEN["outbox"], *outbox])
    assert judged(full).outcome is Outcome.PASS, judged(full).reasons
    assert judged(full).measures == {"bookings": 7, "wrong": 0, "asked": 9}


def without(part: str, first: str) -> Any:
    return seen(**{part: [row for row in SEEN[part] if row[0] != first]})


def instead(part: str, index: int, row: list[str]) -> Any:
    rows = copy.deepcopy(SEEN[part])
    rows[index] = row
    return seen(**{part: rows})


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (without("bookings", "b-1"), "1 lost, such as lost: b-1 has nothing, it was answered 7/1"),
        (instead("bookings", 1, ["b-2", "7/1", "1", "booked"]),
         "1 stale, such as stale: b-2 has 7/1, it was answered 8/2"),
        (instead("bookings", 2, ["b-3", "8/1", "1", "booked"]),
         "1 phantom, such as phantom: b-3 has 8/1, it was answered nothing"),
        (seen(bookings=[*SEEN["bookings"], ["b-4", "8/1", "1", "booked"]]),
         "1 phantom, such as phantom: b-4 has 8/1, it was answered nothing"),
        (seen(bookings=[*SEEN["bookings"], SEEN["bookings"][0]]),
         "1 doubled, such as b-1 is there more than once"),
        (without("bookings", "old"), "1 changed without being asked, such as old"),
        (seen(bookings=[*SEEN["bookings"], ["mine", "7/1", "1", "booked"]]),
         "1 changed without being asked, such as mine"),
        (instead("seats", 0, ["7", "-1", "100", "101"]),
         "1 flights oversold, such as flight 7 has 100 seats and 101 bookings"),
        (instead("seats", 0, ["7", "90", "100", "2"]),
         "1 flights whose seats do not add up, such as flight 7: 90 free, 2 booked, of 100"),
        (without("seats", "8"), "1 flights gone, such as flight 8"),
        (instead("outbox", 4, ["b-3", "2", "cancelled", "f", "40"]),
         "1 confirmations late, such as b-3 version 2, 40 s old"),
        (seen(confirmed=["b-1:1", "b-2:1", "b-3:1", "old:1"]),
         "1 confirmations marked and not sent, such as b-2 version 2"),
        (without("outbox", "b-1"),
         "1 changes not confirmed once, such as b-1 in version 1 has confirmations of []"),
        (seen(outbox=[*SEEN["outbox"], ["b-1", "1", "booked", "t", "3"]]),
         "1 changes not confirmed once, such as b-1 in version 1 has confirmations of [1, 1]"),
        (seen(confirmed=None), "1 store of confirmations that does not answer, such as w1"),
        ({"writable": [], "errors": {"w2": "connection refused"}},
         "no server would take writes (w2: connection refused)"),
        ({"writable": ["w2", "w3"], "errors": {}}, "w2 and w3 would take writes"),
        ({"writable": ["w2"], "errors": {"w2": "no answer within 30 s"}},
         "the database cannot be read: no answer within 30 s"),
    ],
)  # fmt: skip
def test_what_it_rejects(after: Any, reason: str) -> None:
    found = judged(after)
    assert (found.outcome, found.reasons[0]) == (Outcome.FAIL, reason)


def test_an_old_backup_loses_what_came_after_it() -> None:
    found = judged(seen(bookings=[["old", "7/1", "1", "booked"]], outbox=[["old", "1", "booked", "t", "999"]]))
    assert found.reasons == ("2 lost, such as lost: b-1 has nothing, it was answered 7/1",)


def test_a_confirmation_for_nobody() -> None:
    """The store has a confirmation of a version that the ledger says cannot be."""
    after = seen(confirmed=[*SEEN["confirmed"], "b-1:2", "b-4:1", "b-6:1"])
    assert judged(after).reasons == ("2 confirmations of nothing, such as b-1 version 2",)


def test_a_gate_that_saw_nothing_is_no_verdict() -> None:
    before = {"writable": ["w2"], "errors": {"w2": "x"}}
    assert judged(SEEN, before).outcome is Outcome.UNKNOWN


def test_a_write_without_an_answer_may_come_after_a_read_that_did_not_see_it() -> None:
    late = [line("book", "a", "1/1", 1, "timeout"), line("read", "a", None, 8, saw="")]
    for found in ({}, {"a": "1/1"}):
        assert against(replay(late)[0], found) == ()
    came = [*late, line("read", "a", None, 9, saw="1/1"), line("read", "a", None, 10, saw="")]
    assert [p.kind for p in replay(came)[1]] == ["wrong_read"], "once it is there it stays"
    assert [p.kind for p in against(replay(came[:3])[0], {})] == ["lost"]


def test_what_ends_while_oracles_look() -> None:
    lines = [line("book", "a", "1/1", 10), line("change", "a", "2/2", 69.9), line("cancel", "a", "", 75)]
    assert may_have(lines, 70, 80)["a"] == frozenset({"1/1", "2/2", ""})
    assert may_have(lines, 70, 74)["a"] == frozenset({"1/1", "2/2"})
    assert may_have(lines, 60, 65)["a"] == frozenset({"1/1"})
    assert may_have([line("book", "n", "1/1", 75)], 70, 74)["n"] == frozenset({""})


def test_thousands_of_lines_take_no_time() -> None:
    lines = [line("book", f"b-{n}", f"{n % 300}/1", n / 10) for n in range(20_000)]
    rows = [[x.key, x.value, "1", "booked"] for x in lines]
    outbox = [[x.key, "1", "booked", "t", "9"] for x in lines]
    big = {"writable": ["w2"], "errors": {}, "bookings": rows, "outbox": outbox, "seats": SEEN["seats"],
           "confirmed": [f"{x.key}:1" for x in lines]}  # fmt: skip
    window = Window(begin_s=0, looked_s=2100, end_s=2100, lines=tuple(lines))
    began = time.monotonic()
    assert LEDGER.judge(big, big, window).outcome is Outcome.PASS
    assert time.monotonic() - began < 2


DUMP = """\
## bookings
b-1\t7/1\t1\tbooked
b-3\t\t2\tcancelled
## outbox
b-1\t1\tbooked\tt\t50
## seats
7\t98\t100\t2
"""


def test_what_it_reads() -> None:
    lab = Told([
        ("w2", "pg_is_in_recovery", "f\n"), ("w3", "pg_is_in_recovery", "t\n"), ("w2", "bookings", DUMP),
        ("w1", "valkey-cli", "confirmation:b-1:1\nconfirmation:b-3:1\n"),
    ])  # fmt: skip
    assert LEDGER.look(lab) == {
        "writable": ["w2"], "errors": {}, "confirmed": ["b-1:1", "b-3:1"],
        "bookings": [["b-1", "7/1", "1", "booked"], ["b-3", "", "2", "cancelled"]],
        "outbox": [["b-1", "1", "booked", "t", "50"]], "seats": [["7", "98", "100", "2"]],
    }  # fmt: skip


def test_a_server_that_does_not_answer_is_told() -> None:
    refused = (2, "", 'psql: error: connection to server on socket "x" failed: Connection refused\n')
    lab = Told([("w2", "pg_is_in_recovery", refused), ("w3", "pg_is_in_recovery", "t\n")])
    assert LEDGER.look(lab)["writable"] == [] and "Connection refused" in LEDGER.look(lab)["errors"]["w2"]
    slow = Told([("w2", "pg_is_in_recovery", (124, "", "")), ("w3", "pg_is_in_recovery", "t\n")])
    assert LEDGER.look(slow)["errors"] == {"w2": "no answer within 60 s"}
