"""The desired tree of an interface: which lanes there are, and which rules lead to them. Pure.

A lane is an IFB for the packets that a certain set of shapes has in common. The rules go from the largest set to
the smallest, so that a packet comes to the lane of exactly those shapes that select it. A set that cannot have a
packet of its own, because another shape selects all of it as well, has no lane.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

from pydantic import BaseModel, ConfigDict

from node_agent.errors import ConflictError
from node_agent.host.links import Qdisc
from node_agent.lanes.boxes import Box, boxes_of, holds, meet
from node_agent.lanes.qdiscs import qdiscs_of
from node_agent.lanes.rules import Chain, chain_rules, mark_rules
from node_agent.shape import Shape
from node_agent.shape_merge import Unmergeable, merged
from node_agent.traffic import Selection

Direction = Literal["out", "in"]

MAX_SHAPES, MAX_LANES = 8, 32
"""For one interface and direction. Five shapes that all overlap make 31 lanes."""

LANE_PREFIX = "gf"


class LiveShape(BaseModel):
    """A shape that stands, as its file says: the injection's mark, which traffic, and what happens to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: str
    selection: Selection
    shape: Shape


@dataclass(frozen=True)
class Lane:
    """An IFB: its name, what its alias says, its MTU and qdiscs, and the marks of the injections in it."""

    name: str
    alias: str
    mtu: int
    qdiscs: tuple[Qdisc, ...]
    tags: tuple[str, ...]
    direction: Direction


@dataclass(frozen=True)
class Tree:
    """All of the lab's that there should be for an interface. `marks`: rules that mark packets of control
    groups."""

    interface: str
    lanes: tuple[Lane, ...] = ()
    chains: tuple[Chain, ...] = ()
    marks: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def desired(interface: str, live: Sequence[LiveShape], groups: Mapping[str, int]) -> Tree:
    """The tree for these shapes of one interface. `groups`: control groups that exist, and their numbers.

    Raises :class:`ConflictError` where shapes cannot be merged, or are too many.
    """
    return _desired(interface, tuple(sorted(live, key=lambda one: one.tag)), tuple(sorted(groups.items())))


@lru_cache(maxsize=16)
def _desired(interface: str, shapes: tuple[LiveShape, ...], numbers: tuple[tuple[str, int], ...]) -> Tree:
    """Remembered, because each look at the evidence asks for it again."""
    groups = dict(numbers)
    paths = _marked_paths(shapes)
    lanes: list[Lane] = []
    chains = []
    for direction in ("out", "in"):
        here = [one for one in shapes if direction in one.selection.directions]
        if not here:
            continue
        found = _lanes(interface, direction, here)
        lanes += [lane for lane, _ in found]
        ways = [(lane.name, lane.tags, boxes) for lane, boxes in found]
        guard = tuple(sorted({port for one in here for port in one.selection.guard}))
        chains.append(chain_rules(interface, direction, guard, ways, paths))
    return Tree(
        interface, tuple(lanes), tuple(chains), mark_rules(interface, paths, groups),
        tuple(one.tag for one in shapes),
    )  # fmt: skip


def _lanes(
    interface: str, direction: Direction, shapes: Sequence[LiveShape]
) -> list[tuple[Lane, tuple[Box, ...]]]:
    if len(shapes) > MAX_SHAPES:
        raise ConflictError(
            f"{interface} has {len(shapes) - 1} shapes {direction}wards already",
            allowed=f"at most {MAX_SHAPES}: labctl recover {_id(shapes[0].tag)}, or another interface",
        )
    found = []
    for members, boxes in _sets(shapes):
        lane = _lane(interface, direction, members)
        found.append((lane, boxes))
        if len(found) > MAX_LANES:
            raise ConflictError(
                f"the shapes of {interface} overlap in more than {MAX_LANES} ways",
                allowed="fewer of them at once, or the same peers, ports and protocol as another",
            )
    return found


def _sets(shapes: Sequence[LiveShape]) -> Iterable[tuple[tuple[LiveShape, ...], tuple[Box, ...]]]:
    """Each set of shapes that can have packets of its own, with those packets; largest sets first."""
    single = {one.tag: boxes_of(one.selection) for one in shapes}
    common: dict[tuple[str, ...], tuple[Box, ...]] = {(tag,): boxes for tag, boxes in single.items()}
    layers: list[list[tuple[LiveShape, ...]]] = [[(one,) for one in shapes]]
    while layers[-1]:
        layers.append([])
        for members in layers[-2]:
            tags = tuple(one.tag for one in members)
            for other in shapes[shapes.index(members[-1]) + 1 :]:
                boxes = meet(common[tags], single[other.tag])
                if boxes:
                    common[(*tags, other.tag)] = boxes
                    layers[-1].append((*members, other))
    for layer in reversed(layers):
        for members in layer:
            tags = tuple(one.tag for one in members)
            others = [single[one.tag] for one in shapes if one.tag not in tags]
            own = tuple(b for b in common[tags] if not any(holds(boxes, b) for boxes in others))
            if own:
                yield members, own


def _lane(interface: str, direction: Direction, members: tuple[LiveShape, ...]) -> Lane:
    try:
        shape = merged(one.shape for one in members)
    except Unmergeable as clash:
        raise _refused(members, clash) from clash
    mtu = max(one.selection.mtu for one in members)
    qdiscs = qdiscs_of(shape.model_copy(update={"seed": _drawn(shape.seed, direction)}), mtu)
    tags = tuple(one.tag for one in members)
    told = [interface, direction, members[0].selection.index, tags, [str(q) for q in qdiscs],
            [(q.burst, q.distribution) for q in qdiscs]]  # fmt: skip
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    alias = f"{interface} {direction} {' '.join(tags)}"[:250]
    small = min(mtu, shape.max_packet_bytes or mtu)  # a tbf whose burst is below the MTU is told of in the log
    return Lane(f"{LANE_PREFIX}{digest[:12]}", alias, small, qdiscs, tags, direction)


def _drawn(seed: int | None, direction: Direction) -> int | None:
    """A seed for each direction: the two draw apart."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"{seed} {direction}".encode()).digest()[:8]) >> 1


def _refused(members: tuple[LiveShape, ...], clash: Unmergeable) -> ConflictError:
    """Name the first two that clash."""
    for a, b in combinations(members, 2):
        try:
            merged((a.shape, b.shape))
        except Unmergeable as pair:
            clash = pair
            return ConflictError(
                f"{_id(a.tag)} and {_id(b.tag)} select the same packets and do not go together: {clash}",
                field=clash.parameter, allowed=f"labctl recover {_id(a.tag)}, or traffic that is not in both",
            )  # fmt: skip
    names = ", ".join(_id(one.tag) for one in members)
    return ConflictError(f"injections {names} do not go together: {clash}", field=clash.parameter)


def _id(tag: str) -> str:
    return tag.removeprefix("groundfault-")


def _marked_paths(shapes: Iterable[LiveShape]) -> tuple[str, ...]:
    """Control groups whose packets have to be told apart, outer ones first: the last rule that fits counts."""
    paths = {path for one in shapes for path in one.selection.cgroups}
    return tuple(sorted(paths, key=lambda path: (path.count("/"), path)))
