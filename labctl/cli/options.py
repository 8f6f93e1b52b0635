"""Options and arguments that several commands share, with their shell completion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from labctl.cli.base import session_of
from labctl.cli.fleet import ask_all
from labctl.cli.targets import NUMBERS
from labctl.errors import LabctlError
from labctl.report.duration import parse_duration
from node_agent.injection import InjectionView

COMPLETION_TIMEOUT_S = 2.0
"""How long a shell waits for injection ids before it offers none."""

Decorator = Callable[[Any], Any]


class DurationType(click.ParamType[float]):
    """A duration with a unit; gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def complete_nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The lab's nodes that begin so."""
    try:
        nodes = session_of(ctx).nodes()
    except LabctlError:
        return []
    return [node.name for node in nodes if node.name.startswith(incomplete)]


def complete_labels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The labels of the lab's nodes that begin so."""
    try:
        nodes = session_of(ctx).nodes()
    except LabctlError:
        return []
    there = {f"{key}={value}" for node in nodes for key, value in node.labels.items()}
    return sorted(label for label in there if label.startswith(incomplete))


def complete_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The lab's nodes, and the words that draw some of them, that begin so."""
    return [*complete_nodes(ctx, param, incomplete), *(word for word in NUMBERS if word.startswith(incomplete))]


def complete_injections(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of live injections, with fault and node as help; none where the agents do not answer at once."""
    session = session_of(ctx)
    try:
        nodes = session.nodes()
        answers = ask_all(nodes, lambda node: session.injections(node).list(timeout_s=COMPLETION_TIMEOUT_S))
    except LabctlError:
        return []
    live: dict[str, InjectionView] = {one.id: one for reply in answers.good.values() for one in reply.injections}
    return [
        CompletionItem(one.id, help=f"{one.fault} on {one.node}")
        for one in live.values()
        if one.id.startswith(incomplete)
    ]


def nodes_option(*, required: bool, help: str) -> Decorator:
    """`--node`, repeated."""
    return click.option(
        "--node", "-n", "nodes", multiple=True, required=required, metavar="NODE", help=help,
        shell_complete=complete_nodes,
    )  # fmt: skip


def inventory_option() -> Decorator:
    """`--inventory FILE`, for a command that takes an inventory into the lab before it does its work."""
    return click.option(
        "--inventory",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Take this inventory into the lab first (provider ssh).",
    )


def labels_option(help: str = "Only nodes with this label; may be repeated: all of them.") -> Decorator:
    """`--nodes-labelled`, repeated."""
    return click.option(
        "--nodes-labelled", "labels", multiple=True, metavar="KEY=VALUE", help=help,
        shell_complete=complete_labels,
    )  # fmt: skip


def within_option() -> Decorator:
    """`--within`: how long one node may take."""
    return click.option(
        "--within", "within_s", type=DurationType(), metavar="DURATION", callback=_keep_within, expose_value=False,
        help="How long a node may take to answer one request before it is lost.  [default: 3m for changes]",
    )  # fmt: skip


def _keep_within(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    session_of(ctx).within_s = value


def node_argument() -> Decorator:
    """One node."""
    return click.argument("node", metavar="NODE", shell_complete=complete_nodes)


def injection_argument() -> Decorator:
    """One injection."""
    return click.argument("injection_id", metavar="ID", shell_complete=complete_injections)


def duration_option(*, required: bool, help: str) -> Decorator:
    """`--for`."""
    return click.option("--for", "lease_s", type=DurationType(), required=required, metavar="DURATION", help=help)
