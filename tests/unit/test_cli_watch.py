"""Hits in a watch: each once, in order, on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest

from labctl.report.hits import HitLog, hit_lines
from node_agent.fault import Evidence, Hit
from node_agent.injection import InjectionView
from tests.unit.agents import view
from tests.unit.cli_world import World

ID = "abcd2345"


def hits(*sequences: int) -> tuple[Hit, ...]:
    return tuple(
        Hit(sequence=n, time_us=7_000_000 + n, pid=70, tid=70, comm="db", call="pread64", where=f"/srv/{n}",
            answer="EIO")
        for n in sequences
    )  # fmt: skip


def seen(*sequences: int, node: str = "w1") -> InjectionView:
    return view(ID, node=node, evidence=Evidence(armed=True, hits=len(sequences), samples=hits(*sequences)))


def watched(world: World, looks: Sequence[Sequence[int]]) -> None:
    """w1 has the injection; each look finds these samples, and then it is over."""
    assert world.run("inject", "toy_error", "--file", "/a", "--id", ID, "--node", "w1").code == 0
    injector = world.injector("w1")
    left = [hits(*look) for look in looks]

    def look(injection_id: str) -> InjectionView:
        samples = left.pop(0)
        evidence = Evidence(armed=bool(left), hits=len(samples), counters={"seen": 9}, samples=samples)
        over = {} if left else {"state": "recovered", "reason": "expired"}
        return injector.known[injection_id].model_copy(update={"evidence": evidence, **over})

    def start(node: str, method: str) -> None:
        if method == "Watch":
            injector.view = look  # type: ignore[method-assign]

    world.trouble = start


LOOKS = ((), (1, 2), (1, 2), (2, 3), (3, 9))


def test_in_a_pipe_new_hits_stand_below_the_counters(world: World) -> None:
    watched(world, LOOKS)
    done = world.run("watch", ID, "--interval", "0.2")
    assert done.code == 0
    lines = [line.split("  seen=9")[0].split("  ", 1)[1].strip() for line in done.out.splitlines()]
    assert lines == [
        f"w1  {ID}  active  hits=0",
        f"w1  {ID}  active  hits=2",
        "w1  [    7.000001] #1  db[70]  pread64 /srv/1 = EIO",
        "w1  [    7.000002] #2  db[70]  pread64 /srv/2 = EIO",
        f"w1  {ID}  active  hits=2",
        f"w1  {ID}  active  hits=2",
        "w1  [    7.000003] #3  db[70]  pread64 /srv/3 = EIO",
        f"w1  {ID}  recovered  hits=2",
        "w1  (5 hits more in between)",
        "w1  [    7.000009] #9  db[70]  pread64 /srv/9 = EIO",
    ]


def test_under_json_a_look_has_its_new_hits_only(world: World) -> None:
    watched(world, LOOKS)
    done = world.run("watch", ID, "--interval", "0.2", "--json")
    looks = [json.loads(line) for line in done.out.splitlines()]
    told = [[hit["sequence"] for hit in look["evidence"]["samples"]] for look in looks]
    assert told == [[], [1, 2], [], [3], [9]]
    assert looks[1]["evidence"]["samples"][0] == hits(1)[0].model_dump()
    assert looks[3]["evidence"]["counters"] == {"seen": 9}


def test_on_a_terminal_each_hit_scrolls_by_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(world, LOOKS)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    done = world.run("watch", ID, "--interval", "0.2")
    assert [done.out.count(f"pread64 /srv/{n} = EIO") for n in (1, 2, 3, 9)] == [1, 1, 1, 1]
    assert "COUNTERS" in done.out


def test_nodes_count_apart() -> None:
    told = HitLog()
    assert told.new(seen(1, 2, node="w1")) == (hits(1, 2), 0)
    assert told.new(seen(1, node="w2")) == (hits(1), 0)
    assert told.new(seen(1, 2, node="w1")) == ((), 0)
    assert told.new(seen(5, 7, node="w1")) == (hits(5, 7), 3), "3, 4 and 6 were not kept"
    assert told.new(view(ID, evidence=None)) == ((), 0)


def test_a_thread_and_what_is_not_known_are_told_as_such() -> None:
    one = hits(1)[0].model_copy(update={"tid": 71, "where": "", "answer": ""})
    assert hit_lines("w1", [one], 0) == ["    w1  [    7.000001] #1  db[70/71]  pread64"]
