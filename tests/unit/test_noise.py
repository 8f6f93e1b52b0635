"""Noise: its schedule, where it never is, and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from labctl.errors import LabError
from labctl.run.noise import (
    LONGEST_S,
    PROFILES,
    TOLERANT,
    Disturbance,
    NoiseMaker,
    away_from,
    fault_of,
    schedule,
    script_of,
)
from labctl.run.problem import Noise, Planted
from node_agent.catalog import make_fault
from tests.user import until

from .run_world import Broken, problem
from .solving import Notebook

NODES = ("w1", "w2", "w3")


@dataclass
class Toys:
    lost: str = ""
    did: list[str] = field(default_factory=list)
    stands: set[str] = field(default_factory=set)
    leases: list[float] = field(default_factory=list)

    def run(self, node: str, script: str) -> int:
        if node == self.lost:
            raise LabError(f"{node} does not answer")
        self.did.append(f"run {node}")
        return 0

    def plant(self, node: str, fault: str, parameters: Mapping[str, object], lease_s: float) -> str:
        self.leases.append(lease_s)
        self.stands.add(f"{fault}-{len(self.leases)}")
        return f"{fault}-{len(self.leases)}"

    def end(self, node: str, injection: str) -> None:
        if node == self.lost:
            raise LabError(f"{node} does not answer")
        self.stands.discard(injection)


def test_the_seed_decides_it() -> None:
    first = schedule("heavy", 1, NODES, 600)
    assert first == schedule("heavy", 1, NODES, 600) != schedule("heavy", 2, NODES, 600)
    assert [one.at_s for one in first] == sorted(one.at_s for one in first)
    assert {one.kind for one in first} == {"restart", "loss", "neighbour", "cron", "chatter"}
    assert all(one.at_s + one.lasts_s <= 600 and one.lasts_s <= LONGEST_S for one in first)


@pytest.mark.parametrize(("profile", "low", "high"), [("calm", 0, 0), ("usual", 10, 18), ("heavy", 30, 55)])
def test_how_much_there_is(profile: Noise, low: int, high: int) -> None:
    assert profile in PROFILES and low <= len(schedule(profile, 7, NODES, 600)) <= high


def test_it_keeps_away_from_the_problem() -> None:
    mine = problem(faults=(Planted(fault=Broken(), node="w2"),), avoid=("w3",))
    assert away_from(mine, NODES) == ("w1",)
    assert {one.node for one in schedule("heavy", 1, away_from(mine, NODES), 600)} == {"w1"}
    everywhere = problem(avoid=NODES)
    assert schedule("heavy", 1, away_from(everywhere, NODES), 600) == ()


def test_each_disturbance_is_a_script_or_a_fault_that_there_is() -> None:
    for one in schedule("heavy", 3, NODES, 3000):
        planted, script = fault_of(one), script_of(one)
        assert bool(planted) != bool(script)
        if planted:
            make_fault(*planted)
        else:
            subprocess.run(("sh", "-n", "-c", script), check=True)
        assert one.kind != "restart" or one.detail in TOLERANT


def made(*planned: Disturbance, toys: Toys) -> tuple[NoiseMaker, Notebook]:
    notes = Notebook()
    return NoiseMaker(planned, toys, notes), notes


def one(kind: str, at_s: float = 0.0, lasts_s: float = 300.0, node: str = "w1", detail: str = "2") -> Disturbance:
    return Disturbance.model_validate(
        {"at_s": at_s, "lasts_s": lasts_s, "node": node, "kind": kind, "detail": detail}
    )


def test_its_end_leaves_nothing() -> None:
    toys = Toys()
    maker, notes = made(one("loss"), one("neighbour"), one("cron"), one("chatter", at_s=900), toys=toys)
    maker.start()
    until("three have come", lambda: len(notes.of("noise")) == 3)
    assert len(toys.stands) == 2 and all(lease > 300 for lease in toys.leases)
    maker.stop()
    maker.stop()
    assert toys.stands == set() and toys.did == ["run w1", "run w1"], "the cron job, and its end"
    assert [data["what"] for data in notes.of("noise")] == ["loss", "neighbour", "cron"]


def test_what_is_over_ends_by_itself() -> None:
    toys = Toys()
    maker, notes = made(one("loss", lasts_s=0.2), one("loss", at_s=900), toys=toys)
    maker.start()
    until("it has come", lambda: len(notes.of("noise")) == 1)
    until("it has gone", lambda: not toys.stands)
    maker.stop()


def test_a_node_that_is_lost_stops_nothing() -> None:
    toys = Toys(lost="w1")
    maker, notes = made(one("cron"), one("loss"), one("cron", node="w2"), toys=toys)
    maker.start()
    until("all have come", lambda: len(notes.of("noise")) == 3)
    maker.stop()
    assert [data["problem"] for data in notes.of("noise")] == ["w1 does not answer", "", ""]
    assert {data["node"] for data in notes.of("noise_left")} == {"w1"}


def test_no_noise_is_no_thread() -> None:
    maker, _ = made(toys=Toys())
    maker.start()
    maker.stop()
