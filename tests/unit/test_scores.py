"""What episodes add up to, against numbers worked out by hand and against simulated truth."""

from __future__ import annotations

import math
import random

import pytest

from labctl.run.scores import bootstrap, pass_at_1, pass_hat, pass_hat_interval, share, time_with_cap


def test_pass_at_1_is_the_mean_over_problems_not_over_trials() -> None:
    found = pass_at_1({"a": [True] * 10, "b": [False], "none": []})
    assert found.value == 0.5
    assert (found.low, found.high) == (0.0, 1.0), "two problems say little"


def test_pass_hat() -> None:
    trials = {"a": [True, True, True, False, False], "b": [True] * 3, "few": [True]}
    assert pass_hat(trials, 3) == pytest.approx((1 / 10 + 1) / 2)
    assert pass_hat(trials, 1) == pytest.approx((3 / 5 + 1 + 1) / 3)
    assert math.isnan(pass_hat(trials, 6))
    with pytest.raises(ValueError, match="allowed: 1 or more"):
        pass_hat(trials, 0)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    inside = 0
    for draw in range(200):
        found = bootstrap([float(rng.random() < 0.6) for _ in range(60)], seed=draw)
        assert found.low <= found.value <= found.high
        inside += found.low <= 0.6 <= found.high
    assert 178 <= inside <= 200, "95 % of 200, give or take four standard deviations"


def test_it_draws_the_same_from_the_same_seed_and_says_when_there_is_nothing() -> None:
    values = [0.0, 0.5, 1.0, 1.0]
    assert bootstrap(values, 3) == bootstrap(values, 3)
    assert math.isnan(bootstrap([]).value)
    assert str(bootstrap([1.0, 1.0])) == "1.00 [1.00, 1.00]"


def test_times_that_never_came_count_as_the_cap() -> None:
    assert time_with_cap([10.0, None, 5000.0], 1800.0) == pytest.approx((10 + 1800 + 1800) / 3)
    assert math.isnan(time_with_cap([], 1800.0))


def test_shares_of_some_trials_only() -> None:
    found = share({"a": (2, 4), "b": (1, 1), "none": (0, 0)})
    assert found.value == 3 / 5 and (found.low, found.high) == (0.5, 1.0)
    assert math.isnan(share({"a": (0, 0)}).value) and math.isnan(share({}).value)


def test_pass_hat_with_its_interval() -> None:
    trials = {"a": [True] * 3, "b": [False] * 3, "few": [True]}
    found = pass_hat_interval(trials, 3)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    assert found.value == pass_hat(trials, 3)
