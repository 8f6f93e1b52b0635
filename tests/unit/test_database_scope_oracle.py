"""The oracle of the database's scope: what may change in it, and what must not."""

from __future__ import annotations

from typing import Any

import pytest

from labctl.oracles.database_scope import DatabaseScope
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

ORACLE = DatabaseScope()
SETTINGS = "fsync\ton\nzero_damaged_pages\toff\nmax_connections\t60\n"
DATABASE = """\
## role
booking\tf t f f t f f -1 abc
## slot
w3\tphysical f
## object
public.flights\tr booking p f f
public.bookings_flight\ti booking p f f t t CREATE INDEX bookings_flight ON public.bookings USING btree (flight)
constraint flights.flights_check\tCHECK (((free >= 0) AND (free <= seats))) t
## rows
flights but their seats\t320 1b54f2
"""


def look(settings: str = SETTINGS, database: Any = DATABASE, w3: Any = None) -> Any:
    return ORACLE.look(Told([
        ("w2", "role_of_server", f"## role_of_server\nf\n## setting\n{settings}"),
        ("w3", "role_of_server", w3 or f"## role_of_server\nt\n## setting\n{SETTINGS}"),
        ("w2", "pg_authid", database),
    ]))  # fmt: skip


HEALTHY = look()


def judged(after: Any, *permitted: str) -> Any:
    return DatabaseScope(permitted=permitted).judge(HEALTHY, after, WINDOW)


def test_nothing_changed() -> None:
    assert judged(look()).outcome is Outcome.PASS and judged(look()).measures == {"changes": 0, "foreign": 0}


INDEX = DATABASE.splitlines()[6] + "\n"


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (look(SETTINGS.replace("pages\toff", "pages\ton")), "w2:setting zero_damaged_pages was off, is on"),
        (look(SETTINGS + "work_mem\t65536\n"), "w2:setting work_mem was nothing, is 65536"),
        (look(database=DATABASE.replace("booking\tf t", "booking\tt t")),
         "db:role booking was f t f f t f f -1 abc, is t t f f t f f -1 abc"),
        (look(database=DATABASE.replace("w3\tphysical f\n", "")), "db:slot w3 was physical f, is nothing"),
        (look(database=DATABASE.replace(INDEX, "")),
         f"db:object public.bookings_flight was {INDEX.split(chr(9))[1].strip()}, is nothing"),
        (look(database=DATABASE.replace("1b54f2", "ffffff")),
         "db:rows flights but their seats was 320 1b54f2, is 320 ffffff"),
        (look(w3=f"## role_of_server\nt\n## setting\n{SETTINGS.replace('60', '90')}"),
         "w3:setting max_connections was 60, is 90"),
    ],
)  # fmt: skip
def test_each_change_is_told_and_may_be_permitted(after: Any, reason: str) -> None:
    assert (judged(after).outcome, judged(after).reasons) == (Outcome.FAIL, (reason,))
    assert judged(after, reason.split(" was ", 1)[0]).outcome is Outcome.PASS
    assert judged(after, "w1:*").outcome is Outcome.FAIL


def test_a_server_that_is_down_changed_nothing() -> None:
    """That it is down is for others to tell."""
    refused = (2, "", "psql: error: connection refused")
    assert judged(look(w3=refused)).outcome is Outcome.PASS
    found = judged(look(database=refused))
    assert found.outcome is Outcome.UNKNOWN and "w2: psql: error: connection refused" in found.reasons[0]


def test_a_change_that_was_seen_counts_where_the_rest_cannot_be_read() -> None:
    unreadable = (3, "", "ERROR:  could not read blocks 1..1 in file")
    found = judged(look(settings=SETTINGS.replace("60", "90"), database=unreadable))
    assert found.outcome is Outcome.FAIL and found.reasons[0] == "w2:setting max_connections was 60, is 90"
    assert "could not read blocks" in found.reasons[-1]


def test_a_database_that_was_dropped_is_a_change() -> None:
    gone = (2, "", 'psql: error: connection to server failed: FATAL:  database "booking" does not exist')
    after = ORACLE.look(Told([("w2", "psql", gone), ("w3", "psql", gone)]))
    assert judged(after).outcome is Outcome.FAIL
    assert judged(after).reasons == ("w2: the database booking is gone", "w3: the database booking is gone")


def test_a_gate_that_saw_nothing_is_no_verdict() -> None:
    assert ORACLE.judge({"state": {}, "errors": {}}, HEALTHY, WINDOW).outcome is Outcome.UNKNOWN


def test_after_a_repair_another_server_may_take_writes() -> None:
    after = ORACLE.look(Told([
        ("w2", "role_of_server", f"## role_of_server\nt\n## setting\n{SETTINGS}"),
        ("w3", "role_of_server", f"## role_of_server\nf\n## setting\n{SETTINGS}"),
        ("w3", "pg_authid", DATABASE),
    ]))  # fmt: skip
    assert judged(after).outcome is Outcome.PASS
