"""Faults of one disk stand on each other, end in any order, and leave nothing: on a real kernel."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from labctl.errors import UsageError
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, thorough
from tests.user import until
from tests.vm.disks import (
    BLOCKS,
    PER_BLOCK,
    TOP,
    Bench,
    Blocks,
    disk_bench,
    fresh,
    left_as_it_was,
    sector_of,
)  # fmt: skip
from tests.vm.integrity import BLOCK, Checker

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w3") as one:
        yield one


@pytest.fixture(scope="module")
def checker(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Checker:
    return bench.checker(tmp_path_factory.mktemp("program"))


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    with left_as_it_was(bench):
        yield
    bench.sh(f"rm -f {TOP}/victim {TOP}/other")


@pytest.fixture
def victim(checker: Checker) -> Blocks:
    return fresh(checker, "victim")


@pytest.fixture
def other(checker: Checker) -> Blocks:
    """A file that nothing may happen to."""
    return fresh(checker, "other")


def is_as_it_should(bench: Bench, live: dict[str, InjectionView]) -> None:
    """What lives is armed, and nothing is changed on the node but by what lives."""
    names = tuple(view.id for view in live.values())
    now = bench.agent.list(ids=names).injections if names else ()
    assert {view.id for view in now if view.evidence and view.evidence.armed} == set(names)
    assert {difference.injection for difference in bench.agent.residue()} == set(names)


@pytest.mark.parametrize("order", ["slow cache bad rot", *thorough("bad slow rot cache", "rot cache slow bad")])
def test_they_stand_on_each_other_and_end_in_any_order(
    bench: Bench, victim: Blocks, other: Blocks, order: str
) -> None:
    start = sector_of(bench, victim.path, 0)
    live = {
        "bad": bench.inject("write_error", range=f"{start}+{4 * PER_BLOCK}"),
        "slow": bench.inject("disk_slow", read_ms=20, write_ms=20),
        "rot": bench.inject("silent_corruption", file=other.path, permanent=True),
        "cache": bench.inject("lost_flush", cache_mib=16, accept_data_loss=True),
    }
    for name in (*order.split(), ""):
        is_as_it_should(bench, live)
        assert other.report().counts.get("corrupted", 0) == ("rot" in live)
        if "cache" not in live:
            write = (
                f"dd if={victim.path} of={victim.path} conv=notrunc oflag=direct bs={BLOCK} count=1 status=none"
            )
            assert bool(bench.says(write)) == ("bad" in live)
        if name:
            bench.recover(live.pop(name))
    victim.is_intact()
    other.is_intact()


def test_a_cache_above_sectors_that_take_no_writes(bench: Bench, victim: Blocks) -> None:
    """What it holds cannot be written back, so it stays until it can, and nothing acknowledged is lost.

    The file system may have stopped meanwhile: then it was repaired, and that was told.
    """
    bad = bench.inject("write_error", range=f"{sector_of(bench, victim.path, 0)}+{4 * PER_BLOCK}")
    cache = bench.inject("lost_flush", cache_mib=16, accept_data_loss=True)
    assert victim.write(8).synced == BLOCKS + 8
    (stuck,) = bench.agent.recover((cache.id,)).injections
    assert stuck.state == "stuck" and stuck.residue
    assert bench.evidence(bad).hits >= 1
    bench.recover(bad)
    until("it is tried again", lambda: bench.look(cache).state == "recovered")
    victim.is_intact()


@pytest.mark.thorough
def test_many_come_and_go(bench: Bench, victim: Blocks) -> None:
    """A random walk, the same each time: up to five at once, some refused because another has the place."""
    chance = random.Random(10)
    start = sector_of(bench, victim.path, 0)
    live: dict[str, InjectionView] = {}
    held: dict[str, tuple[int, int]] = {}
    refused = 0
    for _ in range(25):
        if live and (len(live) == 5 or chance.random() < 0.4):
            name = chance.choice(list(live))
            held.pop(name, None)
            bench.recover(live.pop(name))
            is_as_it_should(bench, live)
            continue
        first, count = chance.randrange(16), chance.randrange(1, 8)
        there: dict[str, Any] = {"range": f"{start + first * PER_BLOCK}+{count * PER_BLOCK}"}
        choices: list[tuple[str, dict[str, Any]]] = [
            ("disk_slow", {"read_ms": 5, "write_ms": 5}),
            ("lost_flush", {"cache_mib": 4, "accept_data_loss": True}),
            ("write_error", there),
            ("torn_write", {**there, "accept_data_loss": True}),
            ("silent_corruption", there),
            ("disk_slow", {**there, "read_ms": 5}),
        ]
        fault, parameters = chance.choice(choices)
        placed = "range" in parameters
        others = [name for name, (f, n) in held.items() if placed and f < first + count and first < f + n]
        if others:
            with pytest.raises(UsageError) as told:
                bench.inject(fault, **parameters)
            assert any(name in told.value.message for name in others), told.value
            refused += 1
            continue
        view = bench.inject(fault, **parameters)
        live[view.id] = view
        if placed:
            held[view.id] = (first, count)
        is_as_it_should(bench, live)
    assert refused == 4
    for name in chance.sample(list(live), len(live)):
        bench.recover(live.pop(name))
    victim.is_intact()
