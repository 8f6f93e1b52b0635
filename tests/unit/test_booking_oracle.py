"""The set of oracles of the booking service, and how many of them look at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.oracles.booking import UNITS, restart_script, standard
from labctl.oracles.database_scope import DatabaseScope
from labctl.oracles.network import Network
from labctl.oracles.replication import Replication
from labctl.oracles.scope import TREES, Scope
from labctl.oracles.units import Units
from labctl.run.oracle import AT_ONCE, Lookout, Oracle, Seen, Window, judge_all, look_all
from labctl.run.verdict import DIMENSIONS, Aspect, Finding, Outcome

from .lookouts import WINDOW, Told

NAMES = ["clients", "ledger", "replication", "units", "disks_w2", "disks_w3", "stores", "pages", "network",
         "clocks", "resources", "scope", "database_scope", "store_scope"]  # fmt: skip


def one(oracles: tuple[Oracle, ...], kind: type[Any]) -> Any:
    return next(oracle for oracle in oracles if isinstance(oracle, kind))


def test_the_set() -> None:
    oracles = standard()
    assert [oracle.name for oracle in oracles] == NAMES
    aspects = {oracle.aspect for oracle in oracles}
    assert aspects == {"objective", "integrity", "scope"}
    assert aspects <= {a for found in DIMENSIONS.values() for a in found}


def test_what_a_problem_relaxes() -> None:
    permitted = ("w2:file /etc/postgresql/*", "w2:setting work_mem")
    assert (
        one(standard(permitted), Scope).permitted == one(standard(permitted), DatabaseScope).permitted == permitted
    )
    assert one(standard(watched=("/srv/x",)), Scope).watched == (*TREES, "/srv/x")
    lost = standard(without=("w3",))
    assert not any(isinstance(o, Replication) for o in lost) and "disks_w3" not in {o.name for o in lost}
    assert {node for node, _ in one(lost, Units).units} == {"w1", "w2"}
    network = one(lost, Network)
    assert set(network.addresses) == {"w1", "w2"} and all(host != "10.77.0.3" for _, host, _ in network.connects)
    assert one(standard(lost_units=(UNITS[0],)), Units).units == UNITS[1:]
    swapped = standard(swapped=True)
    assert one(swapped, Replication).swapped and "db.booking" not in one(swapped, Network).names
    assert [o.name for o in standard(leave_out=("pages", "clocks"))] == [
        n for n in NAMES if n not in ("pages", "clocks")
    ]


def test_all_of_them_see_nothing_where_nodes_are_lost() -> None:
    """UNKNOWN, never FAIL: but for clients, who need no node."""
    oracles = standard()
    sight = look_all(oracles, Told([]))
    assert set(sight.blind) == {*NAMES} - {"clients"}
    found = judge_all(oracles, sight, sight, WINDOW)
    assert {f.outcome for f in found} == {Outcome.UNKNOWN}


def test_a_restart_waits_until_all_are_up() -> None:
    script = restart_script("nginx.service", "etcd.service")
    assert script.startswith("systemctl restart -- nginx.service etcd.service\n") and "timeout 60" in script


class Meeting(Oracle):
    """Looks, and is done when as many look at the same time as shall; those of one turn only meet each other."""

    number: int
    shared: Any
    by_itself: bool = False

    @property
    def name(self) -> str:
        return f"meeting_{self.number}"

    @property
    def aspect(self) -> Aspect:
        return "integrity"

    @property
    def turn(self) -> int:
        return 0 if self.by_itself else 1

    def look(self, lab: Lookout) -> Seen:
        self.shared["now"].append(self.number)
        try:
            self.shared["first" if self.by_itself else "barrier"].wait(10)
            return {"met": sorted(self.shared["now"])} if self.by_itself else {}
        finally:
            if self.by_itself:
                self.shared["left"].wait(10)
            self.shared["now"].remove(self.number)

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        return self.found(Outcome.PASS)


def test_those_of_a_turn_look_at_once() -> None:
    shared = {"now": [], "barrier": threading.Barrier(AT_ONCE)}
    shared |= {"first": threading.Barrier(2), "left": threading.Barrier(2)}
    oracles = [Meeting(number=n, shared=shared, by_itself=n in (0, 5)) for n in range(AT_ONCE + 2)]
    sight = look_all(oracles, Told([]))
    assert sight.blind == {} and [*sight.seen] == [o.name for o in oracles]
    assert sight.seen["meeting_0"] == sight.seen["meeting_5"] == {"met": [0, 5]}


def test_one_that_is_blind_blinds_no_other() -> None:
    class Blind(Meeting):
        def look(self, lab: Lookout) -> Seen:
            raise LabError("too dark") if self.number else ZeroDivisionError("bug")

    shared = {"now": [], "barrier": threading.Barrier(1)}
    oracles = [Blind(number=0, shared=shared), Blind(number=1, shared=shared), Meeting(number=2, shared=shared)]
    sight = look_all(oracles, Told([]))
    assert [*sight.seen] == ["meeting_2"] and sight.blind["meeting_1"] == "too dark"
    assert sight.blind["meeting_0"] == "the oracle crashed: ZeroDivisionError: bug"


@pytest.mark.parametrize("name", ["clients", "units"])
def test_names_are_what_problems_leave_out(name: str) -> None:
    assert name not in {o.name for o in standard(leave_out=(name,))}
