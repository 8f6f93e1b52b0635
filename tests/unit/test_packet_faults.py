"""Faults of packets: what is asked of the kernel; and that the meter's judgement tells right from wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.vm import net_meter
from tests.vm.net_meter import Echo, Flow

COUNT = 3000
SEEDS = range(3)


def flow(*echoes: tuple[int, int, float], sent: int = 0, **more: int) -> Flow:
    """A flow by number, arrival there and milliseconds of each echo."""
    found = tuple(Echo(seq, arrival, int(ms * 1000)) for seq, arrival, ms in echoes)
    return Flow("simulated", sent or len({e.seq for e in found}), found, **more)


def with_losses(lost: Iterator[bool], count: int = COUNT) -> Flow:
    back = [seq for seq in range(count) if not next(lost)]
    return flow(*((seq, at, 1.0) for at, seq in enumerate(back)), sent=count)


def independent(share: float, seed: int) -> Iterator[bool]:
    chance = random.Random(seed)
    while True:
        yield chance.random() < share


def two_states(enter: float, leave: float, seed: int) -> Iterator[bool]:
    """Gilbert's model: in the bad state everything is lost."""
    chance, bad = random.Random(seed), False
    while True:
        if bad:
            bad = chance.random() >= leave
            yield True
        else:
            bad = chance.random() < enter
            yield False


def test_numbers_of_a_flow() -> None:
    one = flow((0, 0, 5), (2, 1, 7), (1, 2, 9), (2, 3, 8), (5, 4, 6), (5, 4, 6), sent=7)
    assert one.lost == (3, 4, 6) and one.bursts == (2, 1)
    assert one.copies_there == 1 and one.copies_here == 1
    assert one.overtaken_there == 1 and one.overtaken_here == 0
    assert one.times_ms == (5, 9, 7, 6) and one.median_ms == 6.5
    assert not one.whole and flow((0, 0, 1), (1, 1, 1)).whole
    assert flow((1, 1, 1), (0, 0, 1)).overtaken_here == 1
    assert not flow((0, 0, 1), spoilt_there=1).whole and not flow((0, 0, 1), spoilt_here=1).whole


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_share_is_believed_and_others_are_not(share: float, seed: int) -> None:
    hits = len(with_losses(independent(share, seed)).lost)
    assert net_meter.share_fits(hits, COUNT, share)
    assert not net_meter.share_fits(hits, COUNT, share * 1.5 + 0.015)
    assert not net_meter.share_fits(hits, COUNT, share / 3), "and neither is far less"
    assert not net_meter.share_fits(0, COUNT, share) and not net_meter.share_fits(COUNT, COUNT, share)


def test_all_and_nothing() -> None:
    assert net_meter.share_fits(COUNT, COUNT, 1) and not net_meter.share_fits(COUNT - 1, COUNT, 1)
    assert net_meter.share_fits(0, COUNT, 0) and not net_meter.share_fits(1, COUNT, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_bursts_are_believed_and_others_are_not(seed: int) -> None:
    """A fifth lost in bursts of 5: leave = 1/5, enter = 1/20."""
    spread = net_meter.burst_spread(0.2, 5)
    found = with_losses(two_states(1 / 20, 1 / 5, seed))
    assert net_meter.bursts_fit(found.bursts, 5) and net_meter.share_fits(len(found.lost), COUNT, 0.2, spread)
    assert not net_meter.bursts_fit(found.bursts, 3) and not net_meter.bursts_fit(found.bursts, 9)
    assert not net_meter.share_fits(len(found.lost), COUNT, 0.08, spread)
    single = with_losses(independent(0.2, seed))
    assert not net_meter.bursts_fit(single.bursts, 5), "the same share, each packet for itself"
    assert not net_meter.share_fits(len(found.lost) * 2, COUNT, 0.2, spread)
    assert not net_meter.bursts_fit((5,) * 9, 5), "too few to say"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_distribution_is_believed_and_others_are_not(seed: int) -> None:
    """100 ms and 60 ms around it, on a machine that adds some milliseconds to each."""
    chance = random.Random(seed)

    def noisy(ms: float) -> float:
        return ms + 5 + chance.expovariate(1 / 4)

    even = [noisy(chance.uniform(40, 160)) for _ in range(800)]
    bell = [noisy(chance.gauss(100, 60)) for _ in range(800)]
    fits, uniform, normal = net_meter.spread_fits, net_meter.uniform, net_meter.normal
    assert fits(even, uniform(100, 60), 15) and fits(bell, normal(100, 60), 15)
    assert not fits(even, normal(100, 60), 15) and not fits(bell, uniform(100, 60), 15)
    assert not fits(even, uniform(100, 30), 15) and not fits(even, uniform(140, 60), 15)
    assert not fits(even, uniform(60, 60), 15) and not fits([100.0] * 800, uniform(100, 60), 15)
