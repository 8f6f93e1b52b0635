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
    return _mean(_hats(trials, k))


def pass_hat_interval(trials: Mapping[str, Sequence[bool]], k: int, seed: int = 0) -> Interval:
    """The same with its interval."""
    return bootstrap(_hats(trials, k), seed)


def _hats(trials: Mapping[str, Sequence[bool]], k: int) -> list[float]:
    if k < 1:
        raise ValueError("k: allowed: 1 or more")
    return [
        math.comb(sum(passes), k) / math.comb(len(passes), k)
        for _, passes in sorted(trials.items())
        if len(passes) >= k
    ]


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """The mean of `values`, and the percentile interval of means of as many drawn from them with replacement."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    rng = random.Random(seed)  # noqa: S311 - statistics, no secret
    size = len(values)
    means = sorted(sum(rng.choices(values, k=size)) / size for _ in range(RESAMPLES))
    cut = int(_TAIL * RESAMPLES)
    return Interval(sum(values) / size, means[cut], means[-1 - cut])


def share(counts: Mapping[str, tuple[int, int]], seed: int = 0) -> Interval:
    """A share of some of the trials only, such as how many of those with a right diagnosis were repaired.

    `counts` has the numerator and the denominator of each problem. The ratio of their sums, and its interval over
    problems drawn again; problems that have none of these trials are never drawn.
    """
    pairs = [pair for _, pair in sorted(counts.items()) if pair[1]]
    if not pairs:
        return Interval(math.nan, math.nan, math.nan)
    rng = random.Random(seed)  # noqa: S311 - statistics, no secret
    ratios = sorted(_ratio(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    cut = int(_TAIL * RESAMPLES)
    return Interval(_ratio(pairs), ratios[cut], ratios[-1 - cut])


def time_with_cap(times_s: Sequence[float | None], cap_s: float) -> float:
    """The mean of times in seconds where those that never came, or later, count as the cap; NaN without any."""
    return _mean([cap_s if t is None else min(t, cap_s) for t in times_s])


def _ratio(pairs: Sequence[tuple[int, int]]) -> float:
    return sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
