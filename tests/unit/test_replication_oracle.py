"""The oracle of replication: a standby that follows, and those that only look like it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from labctl.oracles.replication import Replication
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

ORACLE = Replication()
PRIMARY = """\
## id
755\tf
## mark
0/5000148
00000001
## last
91\tb-77\t2
## senders
w3\t10.77.0.3\tstreaming\t120
## slots
w3\tphysical\tt\treserved
"""
STANDBY = """\
## id
755\tt
## receiver
streaming\tw3\t1
## reached
t\t0/5000180
## last
91\tb-77\t2
"""


def look(primary: Any = PRIMARY, standby: Any = STANDBY, oracle: Replication = ORACLE) -> Any:
    return oracle.look(Told([("w2", "psql", primary), ("w3", "psql", standby)]))


HEALTHY = look()


def judged(after: Any, oracle: Replication = ORACLE) -> Any:
    return oracle.judge(HEALTHY, after, WINDOW)


def test_a_standby_that_follows() -> None:
    found = judged(HEALTHY)
    assert (found.outcome, found.reasons) == (Outcome.PASS, ())
    assert found.measures == {"lag_bytes": 120, "primary": "w2"}


def test_the_standby_is_asked_for_what_the_primary_has_just_written() -> None:
    lab = Told([("w2", "psql", PRIMARY), ("w3", "psql", STANDBY)])
    ORACLE.look(lab)
    asked = next(script for node, script in lab.asked if node == "w3")
    assert asked.count("0/5000148") == 2 and "WHERE o.id = 91" in asked and "1..100" in asked


@pytest.mark.parametrize(
    ("primary", "standby", "reason"),
    [
        (PRIMARY.replace("w3\t10.77.0.3\tstreaming\t120\n", ""), STANDBY, "w2 streams to nobody"),
        (PRIMARY.replace("streaming", "catchup"), STANDBY, "w2 streams to nobody: catchup"),
        (PRIMARY, STANDBY.replace("streaming\tw3\t1\n", ""), "w3 receives nothing"),
        (PRIMARY, STANDBY.replace("t\t0/5000180", "f\t0/3FFFFF8"),
         "w3 had not replayed 0/5000148 after 10 s: it is at 0/3FFFFF8"),
        (PRIMARY, STANDBY.replace("91\tb-77\t2\n", ""), "w3 has not the newest booking, b-77"),
        (PRIMARY.replace("00000001", "00000002"), STANDBY, "w2 is on timeline 2, was on 1"),
        (PRIMARY.replace("755", "756"), STANDBY.replace("755", "756"),
         "a server was made anew: its system identifier is another one"),
        (PRIMARY, STANDBY.replace("755\tt", "755\tf"), "w2 is no primary, or w3 no standby"),
        (PRIMARY.replace("t\treserved", "f\treserved"), STANDBY,
         "slot w3 is w3 physical f reserved, was w3 physical t reserved"),
        (PRIMARY.replace("reserved\n", "reserved\nold\tphysical\tf\textended\n"), STANDBY,
         "slot old is old physical f extended, was not there"),
        (PRIMARY.replace("w3\tphysical\tt\treserved\n", ""), STANDBY,
         "slot w3 is not there, was w3 physical t reserved"),
        ((2, "", "psql: error: connection refused"), STANDBY, "w2: psql: error: connection refused"),
        (PRIMARY, (124, "", ""), "w3: no answer within 40 s"),
    ],
)  # fmt: skip
def test_what_it_rejects(primary: Any, standby: Any, reason: str) -> None:
    found = judged(look(primary, standby))
    assert (found.outcome, found.reasons) == (Outcome.FAIL, (reason,))


def test_roles_that_were_swapped_pass_where_that_is_permitted() -> None:
    ahead = PRIMARY.replace("00000001", "00000002").replace("w3", "w2")
    permitted = Replication(swapped=True)
    lab = Told([("w2", "pg_log_standby_snapshot", (3, "", "ERROR:  recovery is in progress")),
                ("w3", "pg_log_standby_snapshot", ahead), ("w2", "psql", STANDBY)])  # fmt: skip
    after = permitted.look(lab)
    found = judged(after, permitted)
    assert (found.outcome, found.reasons, found.measures["primary"]) == (Outcome.PASS, (), "w3")
    assert judged(ORACLE.look(lab)).reasons == ("w2: ERROR:  recovery is in progress",)


def test_no_primary_at_all() -> None:
    dead = (2, "", "psql: error: connection refused")
    after = look(dead, dead, Replication(swapped=True))
    assert judged(after, Replication(swapped=True)).outcome is Outcome.FAIL


def test_an_empty_database_has_no_newest_booking() -> None:
    empty = PRIMARY.replace("91\tb-77\t2\n", ""), STANDBY.replace("91\tb-77\t2\n", "")
    after = look(*empty)
    assert Replication().judge(copy.deepcopy(after), after, WINDOW).outcome is Outcome.PASS
