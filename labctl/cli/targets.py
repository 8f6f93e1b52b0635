"""Choosing nodes by name, by label or by lot, and splitting them into two groups. Pure.

Lots are drawn by hash: a seed and the same nodes always give the same choice, the majority holds the minority, the
minority holds the one, and a node that joins the lab changes no more than it must.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.errors import UsageError
from labctl.lab.model import Node
from labctl.nearest import nearest

NUMBERS = ("one", "minority", "majority", "all")
_LABEL = re.compile(r"^([A-Za-z0-9][A-Za-z0-9_.-]*)=([A-Za-z0-9_.:-]*)$")


@dataclass(frozen=True)
class Chosen:
    """The nodes, and how they were found in words; no words where they were named."""

    nodes: tuple[Node, ...]
    how: str = ""
    groups: tuple[tuple[Node, ...], tuple[Node, ...]] | None = None


def how_many(word: str, of: int) -> int:
    """How many nodes a word means. A majority is more than half, a minority is what a majority leaves.

    So of 3 nodes 1 and 2, of 4 nodes 1 and 3, of 5 nodes 2 and 3; of 1 or 2 nodes no minority.
    """
    return {"one": min(1, of), "minority": max(0, (of - 1) // 2), "majority": of // 2 + 1, "all": of}[word]


def draw(nodes: Sequence[Node], count: int, seed: int) -> tuple[Node, ...]:
    """So many of the nodes, by lot, in their own order."""
    ranked = sorted(nodes, key=lambda node: hashlib.sha256(f"{seed} {node.name}".encode()).digest())
    lucky = {node.name for node in ranked[:count]}
    return tuple(node for node in nodes if node.name in lucky)


def parse_label(text: str, option: str = "--nodes-labelled") -> tuple[str, str]:
    """Key and value of "role=db". Raises :class:`UsageError`."""
    found = _LABEL.match(text)
    if not found:
        raise UsageError(f"{option}: {text!r} is no label", "allowed: KEY=VALUE, such as role=db")
    return found[1], found[2]


def labelled(nodes: Sequence[Node], labels: Sequence[str], option: str = "--nodes-labelled") -> tuple[Node, ...]:
    """The nodes that have all these labels. Raises :class:`UsageError` where none has."""
    pairs = [parse_label(text, option) for text in labels]
    found = tuple(node for node in nodes if all(node.labels.get(key) == value for key, value in pairs))
    if not found:
        there = sorted({f"{key}={value}" for node in nodes for key, value in node.labels.items()})
        hint = f"labels there are: {', '.join(there)}" if there else "no node has labels: labctl node label --help"
        raise UsageError(f"{option}: no node has {' and '.join(labels)}", hint)
    return found


def choose(nodes: Sequence[Node], words: Sequence[str], labels: Sequence[str], seed: int) -> Chosen:
    """The nodes of `--node` that also have the labels of `--nodes-labelled`.

    A word of :data:`NUMBERS` that is a node's name means that node. Otherwise it stands alone, and draws among the
    nodes with the labels.
    """
    names = {node.name: node for node in nodes}
    numbers = [word for word in words if word in NUMBERS and word not in names]
    if numbers and len(set(words)) > 1:
        raise UsageError(f"--node {numbers[0]}: stands alone", "allowed: names of nodes, or one such word")
    among = labelled(nodes, labels) if labels else tuple(nodes)
    having = f" with {' and '.join(labels)}" if labels else ""
    if numbers:
        count = how_many(numbers[0], len(among))
        if not count:
            raise UsageError(
                f"--node minority: of {len(among)} nodes{having} no minority can be drawn", "allowed: of 3 or more"
            )
        drawn = draw(among, count, seed)
        lot = "" if numbers[0] == "all" else f", drawn with seed {seed}"
        return Chosen(drawn, f"{numbers[0]} of {len(among)} nodes{having}{lot}")
    named = named_nodes(nodes, words) if words else among
    chosen = tuple(node for node in named if node in among)
    if not chosen:
        raise UsageError(f"--node: {', '.join(words)} has not {' and '.join(labels)}", "another node, or label")
    return Chosen(chosen, f"nodes{having}" if labels else "")


def named_nodes(nodes: Sequence[Node], words: Sequence[str], lab: str = "") -> tuple[Node, ...]:
    """The nodes of these names in this order, each once. Raises :class:`UsageError` with the nearest name."""
    known = {node.name: node for node in nodes}
    for word in words:
        if word not in known:
            where = f"lab {lab!r}" if lab else "the lab"
            raise UsageError(f"{where} has no node {word!r}", nearest(word, known, "nodes"))
    return tuple(known[word] for word in dict.fromkeys(words))


def split_groups(
    nodes: Sequence[Node], text: str, labels: Sequence[str], seed: int
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The two groups of "w1/w2,w3", "role=db/role=web" or "minority/majority", among the nodes with the labels.

    A word of :data:`NUMBERS` counts all of them and draws from those that are not in the other group: `one/all` is
    one against all others.
    """
    among = labelled(nodes, labels) if labels else tuple(nodes)
    sides = [[item.strip() for item in side.split(",") if item.strip()] for side in text.split("/")]
    if len(sides) != 2 or not all(sides):
        raise UsageError(
            f"--groups: {text!r} is not two groups",
            "allowed: GROUP/GROUP, each names of nodes, labels KEY=VALUE, or one of " + ", ".join(NUMBERS),
        )
    names = {node.name for node in nodes}
    by_lot = [len(side) == 1 and side[0] in NUMBERS and side[0] not in names for side in sides]
    groups: list[tuple[Node, ...]] = [
        () if lot else group_of(among, side) for side, lot in zip(sides, by_lot, strict=True)
    ]
    for number, lot in enumerate(by_lot):
        if lot:
            rest = [node for node in among if node not in groups[1 - number]]
            word = sides[number][0]
            count = len(rest) if word == "all" and groups[1 - number] else how_many(word, len(among))
            groups[number] = draw(rest, count, seed)
            if not 0 < count <= len(rest):
                raise UsageError(
                    f"--groups: {word} of {len(among)} nodes are {count}, and {len(rest)} are left for it",
                    "allowed: two groups that share no node, such as minority/majority",
                )
    both = [node.name for node in groups[0] if node in groups[1]]
    if both:
        raise UsageError(f"--groups: {', '.join(both)} is in both groups", "allowed: groups that share no node")
    return groups[0], groups[1]


def group_of(nodes: Sequence[Node], items: Sequence[str], option: str = "--groups") -> tuple[Node, ...]:
    """The nodes of names and labels, in the lab's order. Raises :class:`UsageError` for what is neither."""
    wanted: set[str] = set()
    for item in items:
        if "=" in item:
            wanted |= {node.name for node in labelled(nodes, [item], option)}
        else:
            try:
                wanted |= {node.name for node in named_nodes(nodes, [item])}
            except UsageError as error:
                raise UsageError(f"{option}: {error.message}", error.hint) from None
    return tuple(node for node in nodes if node.name in wanted)
