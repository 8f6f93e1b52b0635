"""From what a user wants to happen to packets to the chances that netem has to be told. Pure."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from node_agent.shape import Bursts


def bursts_of(loss_percent: float, packets: float) -> Bursts:
    """The two states in which a share is lost in bursts of a mean length.

    In the bad state all is lost. It is left with r = 1 / length, so the lengths are geometric with that mean; it
    is entered with p = loss / (length * (1 - loss)), because of all packets p / (p + r) are lost. Raises
    ValueError where that is more than 1: bursts that short cannot make up such a share.
    """
    loss = loss_percent / 100
    if loss >= packets / (packets + 1):
        most = 100 * packets / (packets + 1)
        raise ValueError(
            f"bursts of {packets:g} packets lose less than {most:.4g} percent; give longer ones or none"
        )
    return Bursts(enter_percent=100 * loss / (packets * (1 - loss)), leave_percent=100 / packets)


@cache
def chance_for(percent: float, correlation: float) -> float:
    """The chance, in percent, to ask netem for so that this share of the packets is hit in the long run.

    Netem draws x' = (1 - c) u + c x, with u even in 0 to 1, and hits where that is below the chance
    (net/sched/sch_netem.c, get_crandom). Such draws gather around a half: with a chance of 10 % and a correlation
    of 25 % only one in 60 would be hit. So the chance is the quantile of x, found on a grid.
    """
    share, c = percent / 100, correlation / 100
    if not c or not 0 < share < 1:
        return percent
    spots = _settled(c)
    above = next(i for i in range(1, len(spots)) if spots[i] >= share)
    low, high = spots[above - 1], spots[above]
    return 100 * (above - 1 + (share - low) / (high - low)) / _GRID


_GRID, _ROUNDS, _STILL = 512, 400, 1e-9


@cache
def _settled(c: float) -> tuple[float, ...]:
    """The distribution of correlated draws at the points of a grid from 0 to 1, by iteration."""
    points = [i / _GRID for i in range(_GRID + 1)]
    now = list(points)
    for _ in range(_ROUNDS):
        areas = [0.0]
        for low, high in pairwise(now):
            areas.append(areas[-1] + (low + high) / (2 * _GRID))
        new = [c / (1 - c) * (_area(areas, x / c) - _area(areas, (x - (1 - c)) / c)) for x in points]
        moved = max(abs(a - b) for a, b in zip(now, new, strict=True))
        now = new
        if moved < _STILL:
            break
    return tuple(now)


def _area(areas: list[float], x: float) -> float:
    """The area below the distribution up to x; it is 0 left of the grid and 1 right of it."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return areas[-1] + x - 1
    at = int(x * _GRID)
    return areas[at] + (areas[at + 1] - areas[at]) * (x * _GRID - at)
