"""Lanes: how the live shapes of an interface become one tree in the kernel, and what is measured of it."""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.host import Reader
from node_agent.shape import Shape
from node_agent.traffic import Selection


@dataclass(frozen=True)
class LaneCounters:
    """What one injection has done since it began. `matched`: packets it was meant for; the others are packets of
    the lanes it has a part in, so they include what others did to the same packets."""

    matched: int
    dropped: int = 0
    waiting: int = 0
    sent: int = 0


def refuse_unmergeable(reader: Reader, selection: Selection, shape: Shape) -> None:
    """Say in `locate` what `capture` would say: that this shape cannot be beside those that stand.

    Raises :class:`node_agent.errors.ConflictError` naming the other injection and the parameter, or whose
    qdisc or netfilter chain is in the way.
    """
    raise NotImplementedError


def is_armed(reader: Reader, tag: str) -> bool:
    """Whether the kernel has, for the shape of this mark, exactly what it should have."""
    raise NotImplementedError


def lane_counters(reader: Reader, tag: str) -> LaneCounters:
    """Counters of one injection, from the kernel."""
    raise NotImplementedError
