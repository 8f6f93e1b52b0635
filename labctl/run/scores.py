"""What many episodes add up to: rates with intervals, and what passes every time. Pure.

Trials of one problem resemble each other, so problems are what is drawn again (the cluster of a cluster bootstrap:
Cameron, Gelbach and Miller 2008). Pass^k is the chance that k trials of a problem all pass, estimated without bias
by C(passed, k) / C(trials, k), averaged over problems.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
_TAIL = 0.025


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; NaN where there is nothing to go by."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def pass_at_1(trials: Mapping[str, Sequence[bool]], seed: int = 0) -> Interval:
    """The chance that a trial passes: the mean over problems of the share of their trials that did.

    `trials` has the passes of each problem by its name. Problems without trials count for nothing.
    """
    shares = [sum(found) / len(found) for _, found in sorted(trials.items()) if found]
    return bootstrap(shares, seed)


def pass_hat(trials: Mapping[str, Sequence[bool]], k: int) -> float:
    """Pass^k over problems with at least `k` trials; NaN where there is none. Raises ValueError for k < 1."""
    if k < 1:
        raise ValueError("k: allowed: 1 or more")
    found = [
        math.comb(sum(passes), k) / math.comb(len(passes), k) for passes in trials.values() if len(passes) >= k
    ]
    return sum(found) / len(found) if found else math.nan


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean of `values`, and the percentile interval of means of as many drawn from them with replacement."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    rng = random.Random(seed)  # noqa: S311 - statistics, no secret
    size = len(values)
    means = sorted(sum(rng.choices(values, k=size)) / size for _ in range(RESAMPLES))
    cut = int(_TAIL * RESAMPLES)
    return Interval(sum(values) / size, means[cut], means[-1 - cut])


def time_with_cap(times_s: Sequence[float | None], cap_s: float) -> float:
    """The mean of times in seconds where those that never came, or later, count as the cap; NaN without any."""
    capped = [cap_s if t is None else min(t, cap_s) for t in times_s]
    return sum(capped) / len(capped) if capped else math.nan
