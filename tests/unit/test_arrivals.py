"""Arrivals, against the statistics of a Poisson process."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from labctl.run.arrivals import Tide, arrivals


def within(tide: Tide, seed: int, seconds: float) -> list[float]:
    return list(itertools.takewhile(lambda t: t < seconds, arrivals(tide, seed)))


def test_they_come_as_often_as_they_should_and_scatter_as_poisson_does() -> None:
    tide = Tide(rate_per_s=20, swing=0.0)
    counts = [len(within(tide, seed, 10)) for seed in range(300)]
    assert abs(statistics.mean(counts) - 200) < 4 * math.sqrt(200 / 300)
    assert 0.75 < statistics.variance(counts) / 200 < 1.3, "a regular tick would have next to none"


def test_peaks_and_troughs_are_where_they_should_be() -> None:
    tide = Tide(rate_per_s=50, swing=0.8, cycle_s=40)
    moments = within(tide, 1, 4000)
    quarters = [sum(1 for t in moments if q * 10 <= t % 40 < q * 10 + 10) for q in range(4)]
    peak = 50 * 1000 * (1 + 0.8 * 2 / math.pi)
    trough = 50 * 1000 * (1 - 0.8 * 2 / math.pi)
    for found, expected in zip(quarters, (peak, peak, trough, trough), strict=True):
        assert abs(found - expected) < 5 * math.sqrt(expected)


def test_they_rise_and_the_seed_decides() -> None:
    tide = Tide(rate_per_s=100)
    first = within(tide, 3, 5)
    assert first == sorted(first) == within(tide, 3, 5) != within(tide, 4, 5)


@pytest.mark.parametrize(
    "wrong", [{"rate_per_s": 0}, {"rate_per_s": 1, "swing": 1}, {"rate_per_s": 1, "cycle_s": 0}]
)
def test_a_tide_makes_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Tide.model_validate(wrong)
