"""What several shapes do to the same packet. Pure.

Chances: a packet escapes only if it escapes each of them, 1-(1-p)(1-q). Delays add up. The lowest rate counts,
with its queue, and the smallest packet size. A random loss beside bursts is another chance to be lost in either
state. At most one copy of a packet is made, and what overtakes, overtakes all of the delay. Two things that have
no common answer are refused: two bursts, two draws that resemble the one before, two distributions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import reduce
from math import sqrt
from typing import Any

from node_agent.shape import MAX_DELAY_MS, Bursts, Shape

_CHANCES = ("loss", "duplicate", "corrupt", "reorder")


class Unmergeable(Exception):
    """Two shapes that cannot be one: the parameter in which they clash."""

    def __init__(self, parameter: str, why: str) -> None:
        super().__init__(f"{parameter}: {why}")
        self.parameter, self.why = parameter, why


def merged(shapes: Iterable[Shape]) -> Shape:
    """One shape that does what all do together; in whatever order. Raises :class:`Unmergeable`."""
    return reduce(_two, shapes)


def _two(a: Shape, b: Shape) -> Shape:
    if a.bursts and b.bursts:
        raise Unmergeable("bursts", "two models of bursts have no common one")
    values: dict[str, Any] = {**_delay(a, b), **_narrow(a, b)}
    for name in _CHANCES:
        p, q = getattr(a, f"{name}_percent"), getattr(b, f"{name}_percent")
        values[f"{name}_percent"] = either(p, q)
        values[f"{name}_correlation_percent"] = _correlation(a, b, name)
    bursts = a.bursts or b.bursts
    if bursts:
        if values["loss_correlation_percent"]:
            raise Unmergeable("loss_correlation_percent", "beside bursts only losses that are independent")
        loss, values["loss_percent"] = values["loss_percent"], 0.0
        values["bursts"] = Bursts(
            enter_percent=bursts.enter_percent, leave_percent=bursts.leave_percent,
            loss_bad_percent=either(bursts.loss_bad_percent, loss),
            loss_good_percent=either(bursts.loss_good_percent, loss),
        )  # fmt: skip
    if a.reorder_percent and b.reorder_percent and a.reorder_gap != b.reorder_gap:
        raise Unmergeable("reorder_gap", "two gaps have no common one")
    values["reorder_gap"] = max(a.reorder_gap, b.reorder_gap)
    return Shape(**values, seed=_seed(a.seed, b.seed))


def either(p: float, q: float) -> float:
    """The chance that at least one of two independent things happens, all in percent."""
    if not p or not q:
        return p or q
    return 100 - (100 - p) * (100 - q) / 100


def _correlation(a: Shape, b: Shape, name: str) -> float:
    mine, other = (getattr(s, f"{name}_correlation_percent") for s in (a, b))
    both = getattr(a, f"{name}_percent") and getattr(b, f"{name}_percent")
    if both and (mine or other):
        why = "draws that resemble the one before do not go with others"
        raise Unmergeable(f"{name}_correlation_percent", why)
    return float(mine or other)


def _delay(a: Shape, b: Shape) -> dict[str, float | str]:
    values: dict[str, float | str] = {"delay_ms": a.delay_ms + b.delay_ms}
    if a.delay_ms + b.delay_ms > MAX_DELAY_MS:
        raise Unmergeable("delay_ms", f"together more than {MAX_DELAY_MS:g}")
    if not (a.jitter_ms and b.jitter_ms):
        jittery = a if a.jitter_ms else b
        same = ("jitter_ms", "distribution", "delay_correlation_percent")
        return values | {name: getattr(jittery, name) for name in same}
    normal = a.distribution == b.distribution == "normal"
    if not normal or a.delay_correlation_percent or b.delay_correlation_percent:
        raise Unmergeable("jitter_ms", "only normal distributions without correlation add up")
    return values | {"jitter_ms": sqrt(a.jitter_ms**2 + b.jitter_ms**2), "distribution": "normal"}


def _narrow(a: Shape, b: Shape) -> dict[str, int]:
    """The rate of the slower one with its queue and burst, and the smaller packet."""
    limited = [s for s in (a, b) if s.rate_kbit]
    slow = min(limited, key=lambda s: (s.rate_kbit, s.queue_bytes, s.burst_bytes), default=a)
    smallest = min((s.max_packet_bytes for s in (a, b) if s.max_packet_bytes), default=0)
    return {
        "rate_kbit": slow.rate_kbit, "burst_bytes": slow.burst_bytes, "queue_bytes": slow.queue_bytes,
        "max_packet_bytes": smallest,
    }  # fmt: skip


def _seed(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return None
    return int.from_bytes(hashlib.sha256(f"{min(a, b)} {max(a, b)}".encode()).digest()[:8]) >> 1
