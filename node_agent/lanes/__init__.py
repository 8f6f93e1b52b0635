"""Lanes: how the live shapes of an interface become one tree in the kernel, and what is measured of it.

`tree` says what there should be, `sync` makes it so, `rules` and `qdiscs` know the kernel's words, `boxes` what
two selections have in common, `foreign` what of others stands in the way. See
docs/decisions/0006-lanes-for-traffic.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from node_agent.host import Reader
from node_agent.lanes.foreign import refuse_foreign
from node_agent.lanes.rules import table_of
from node_agent.lanes.sync import (
    SHOULD_NOT_BE,
    differences,
    is_led,
    lanes_there,
    live_shapes,
    refuse_taken,
    wanted_tree,
)
from node_agent.lanes.tree import LiveShape
from node_agent.shape import Shape
from node_agent.traffic import Selection

__all__ = ["LaneCounters", "is_armed", "lane_counters", "refuse_unmergeable"]


@dataclass(frozen=True)
class LaneCounters:
    """What one injection has done since it began. `matched`: packets it was meant for; the others are packets of
    the lanes it has a part in, so they include what others did to the same packets."""

    matched: int
    dropped: int = 0
    waiting: int = 0
    sent: int = 0


def refuse_unmergeable(reader: Reader, selection: Selection, shape: Shape, tag: str = "groundfault-new") -> None:
    """Say in `locate` what `capture` would say: that this shape cannot be beside those that stand.

    Raises :class:`node_agent.errors.ConflictError` naming the other injection and the parameter, or whose
    qdisc or netfilter chain is in the way.
    """
    refuse_foreign(reader, selection)
    tree = wanted_tree(reader, selection.interface, (LiveShape(tag=tag, selection=selection, shape=shape),))
    refuse_taken(reader, tree)


def is_armed(reader: Reader, tag: str) -> bool:
    """Whether the kernel has, for the shape of this mark, what it should have.

    While another shape comes or goes, the tree is neither the old nor the new one: then it counts that the packets
    of this one are led to lanes of its own.
    """
    mine = next((one for one in live_shapes(reader) if one.tag == tag), None)
    if mine is None:
        return False
    tree = wanted_tree(reader, mine.selection.interface)
    if tag not in tree.tags:
        return False
    wrong = [text for text in differences(reader, tree) if not text.endswith(SHOULD_NOT_BE)]
    return not wrong or is_led(reader, tree, tag, mine.selection.directions)


def lane_counters(reader: Reader, tag: str) -> LaneCounters:
    """Counters of one injection, from the kernel; `dropped`, `sent` and `waiting` begin anew where its lanes
    do."""
    mine = next((one for one in live_shapes(reader) if one.tag == tag), None)
    if mine is None:
        return LaneCounters(0)
    interface = mine.selection.interface
    matched = reader.network.rule_counters("netdev", table_of(interface)).get(tag, (0, 0))[0]
    lanes = [one for one in lanes_there(reader, interface).values() if tag in one.alias.split()]
    counters = reader.links.counters()
    outer = [found[0] for one in lanes if (found := counters.get(one.index))]
    return LaneCounters(
        matched, sum(c.dropped for c in outer), sum(c.waiting for c in outer), sum(c.packets for c in outer)
    )
