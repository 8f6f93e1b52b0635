"""From `--node`, `--nodes-labelled` and `--groups` to nodes, and to what each of them is asked to plant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click

from labctl.cli.fleet import some
from labctl.cli.names import AnyFault
from labctl.cli.options import Decorator, complete_targets
from labctl.cli.parameters import Parameter
from labctl.cli.targets import NUMBERS, Chosen, choose, group_of, split_groups
from labctl.errors import UsageError
from labctl.lab.addresses import lab_addresses
from labctl.lab.model import Node

FAR_ENDS, WAY, OUT = "peers", "direction", "out"
"""The fields of a fault of the network that two groups set: whom it is about, and which way."""


@dataclass(frozen=True)
class Targets:
    """Which nodes, and the parameters that come of it: `common` to all, or each group its `own`."""

    chosen: Chosen
    common: Mapping[str, Any] = field(default_factory=dict)
    own: tuple[tuple[Mapping[str, Any], tuple[Node, ...]], ...] = ()


def targets_option() -> Decorator:
    """`--node`, repeated, or a word that draws some."""
    words = "|".join(NUMBERS)
    return click.option(
        "--node", "-n", "nodes", multiple=True, metavar="NODE", shell_complete=complete_targets,
        help=f"Node to plant it on; may be repeated. Or {words}: so many, drawn by the seed.",
    )  # fmt: skip


def group_options(fault: AnyFault) -> list[click.Parameter]:
    """`--groups` and `--one-way`, for a fault that has far ends."""
    if FAR_ENDS not in fault.model_fields:
        return []
    options: list[click.Parameter] = [
        click.Option(
            ["--groups"], metavar="GROUP/GROUP",
            help="Plant it between two groups: names of nodes (w1/w2,w3), labels (role=db/role=web) or lots "
            "(minority/majority, one/all). Sets --peers on each node.",
        )
    ]  # fmt: skip
    if WAY in fault.model_fields:
        options.append(
            click.Option(
                ["--one-way"], is_flag=True, help="With --groups: only what the first group sends to the second."
            )
        )
    return options


def without_need(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """The parameters, none of which a group sets still required: the model says where it is missing."""
    return tuple(replace(p, required=False, default=None) if p.name == FAR_ENDS and p.required else p
                 for p in parameters)  # fmt: skip


def find_targets(
    fault: AnyFault, nodes: Sequence[Node], options: Mapping[str, Any], given: Mapping[str, Any], seed: int
) -> Targets:
    """The nodes that are meant. Raises :class:`UsageError` naming the option."""
    words, labels, groups = options["nodes"], options["labels"], options.get("groups")
    if groups:
        return _between(nodes, options, given, seed)
    if options.get("one_way"):
        raise UsageError("--one-way: is for two groups", "add --groups GROUP/GROUP")
    if not words and not labels:
        raise UsageError(
            "Missing option '--node': which nodes?", f"names of nodes, {', '.join(NUMBERS)}, or --nodes-labelled"
        )
    chosen = choose(nodes, words, labels, seed)
    peers = given.get(FAR_ENDS) if FAR_ENDS in fault.model_fields else None
    return Targets(chosen, {FAR_ENDS: with_addresses(nodes, peers)} if peers else {})


def _between(nodes: Sequence[Node], options: Mapping[str, Any], given: Mapping[str, Any], seed: int) -> Targets:
    if options["nodes"]:
        raise UsageError("--groups and --node exclude each other", "the groups say which nodes")
    if given.get(FAR_ENDS):
        raise UsageError("--groups and --peers exclude each other", "the peers of a node are the other group")
    one_way: dict[str, Any] = {}
    if options.get("one_way"):
        if options.get(WAY):
            raise UsageError("--one-way and --direction exclude each other", "--one-way is out of the first group")
        one_way = {WAY: OUT}
    first, second = split_groups(nodes, options["groups"], options["labels"], seed)
    both = [({FAR_ENDS: _addresses_of(second), **one_way}, first)]
    if not one_way:
        both.append(({FAR_ENDS: _addresses_of(first)}, second))
    them = {node.name for _, group in both for node in group}
    how = f"{groups_text(first, second)}" + (", one way" if one_way else "") + f", seed {seed}"
    chosen = Chosen(tuple(node for node in nodes if node.name in them), how, (first, second))
    return Targets(chosen, own=tuple(both))


def groups_text(first: Sequence[Node], second: Sequence[Node]) -> str:
    """ "w1 / w2, w3"."""
    return f"groups {some(names_in(first))} / {some(names_in(second))}"


def _addresses_of(nodes: Sequence[Node]) -> list[str]:
    return [address for node in nodes for address in lab_addresses(node)]


def with_addresses(nodes: Sequence[Node], peers: Sequence[str]) -> list[str]:
    """Peers with the addresses of those that are nodes of the lab, or labels, in their places."""
    names = {node.name for node in nodes}
    found: list[str] = []
    for peer in peers:
        known = group_of(nodes, [peer], "--peers") if peer in names or "=" in peer else ()
        found += _addresses_of(known) or [peer]
    return list(dict.fromkeys(found))


def names_in(nodes: Iterable[Node]) -> list[str]:
    """Their names."""
    return [node.name for node in nodes]


def chosen_lines(chosen: Chosen) -> list[str]:
    """How the nodes were found, where they were not named."""
    if not chosen.how:
        return []
    tail = "" if chosen.groups else f": {', '.join(names_in(chosen.nodes))}"
    return [f"{chosen.how}{tail}"]


def chosen_data(chosen: Chosen) -> dict[str, Any]:
    """For --json."""
    groups = [names_in(group) for group in chosen.groups] if chosen.groups else None
    return {"nodes": names_in(chosen.nodes), "chosen": chosen.how or "by name"} | (
        {"groups": groups} if groups else {}
    )
