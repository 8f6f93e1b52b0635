"""`labctl node`: what one node is, what is left on it, and the agent's coming and going."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
from pydantic import ValidationError
from rich.console import Group, RenderableType

from labctl.cli.base import LabGroup, pass_session
from labctl.cli.fleet import ask_all, failure, names_of, some
from labctl.cli.options import complete_nodes, labels_option, node_argument
from labctl.cli.session import Session
from labctl.cli.targets import parse_label
from labctl.errors import ExitCode, UsageError
from labctl.invalid import first_problem
from labctl.lab.model import Node
from labctl.report.duration import format_duration
from labctl.report.status import labels_text
from labctl.report.text import PlainTable, labelled
from node_agent.api.views import NodeFacts
from node_agent.residue import Difference

if TYPE_CHECKING:
    pass


@click.group("node", cls=LabGroup)
def node_group() -> None:
    """Facts and residue of a node; install and remove its agent."""


@node_group.command("facts")
@node_argument()
@pass_session
def facts(session: Session, node: str) -> None:
    """What a node is: kernel, system, agent, clock."""
    with session.patience(f"asking {node}"):
        found = session.agent(session.node(node)).facts()
    session.answer(found.model_dump(mode="json"), facts_text(found))


def facts_text(found: NodeFacts) -> str:
    """Facts in words; the clock as a date, the time since boot as a duration."""
    clock = dt.datetime.fromtimestamp(found.clock_unix_s, dt.UTC)
    rows = [
        ("node", found.node),
        ("system", found.os),
        ("kernel", found.kernel),
        ("up for", format_duration(found.boottime_s // 1)),
        ("clock", f"{clock:%Y-%m-%d %H:%M:%S} UTC"),
        ("machine", f"{found.cpus} CPU, {found.memory_mib} MiB"),
        ("agent", f"{found.agent_version}, contract {found.contract}, Python {found.python}"),
        ("new faults", "refused: labctl stop is in force" if found.stopped else "allowed"),
        ("boot id", found.boot_id),
    ]
    return "\n".join(labelled(rows, ""))


@node_group.command("residue")
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete_nodes)
@labels_option()
@pass_session
def residue(session: Session, names: tuple[str, ...], labels: tuple[str, ...]) -> int:
    """What differs on a node from before its first fault.

    And whose it is: a live injection's, somebody else's, or residue, which ends with 75. Several nodes, or those
    with a label, are asked at once.
    """
    if not names and not labels:
        raise UsageError("NODE is missing", "names of nodes, or --nodes-labelled KEY=VALUE")
    nodes = session.nodes(names, labels)
    with session.patience(f"asking {names_of(nodes)}"):
        answers = ask_all(nodes, lambda node: session.agent(node).residue())
    if answers.bad:
        raise failure(answers, f"answered: {some(answers.good) or 'no node'}")
    left = [one for found in answers.good.values() for one in found if not one.injection and not one.foreign]
    code = ExitCode.NODE_DIRTY if left else ExitCode.PASS
    each = [{"node": name, "entries": _entries(found)} for name, found in answers.good.items()]
    data = {**each[0], "exit_code": int(code)} if len(each) == 1 else {"nodes": each, "exit_code": int(code)}
    session.answer(data, _residue_page(answers.good))
    return code


def _entries(found: Sequence[Difference]) -> list[dict[str, object]]:
    return [one.model_dump(mode="json") for one in found]


def _residue_page(found: Mapping[str, Sequence[Difference]]) -> RenderableType:
    alone = len(found) == 1
    parts: list[RenderableType] = []
    for name, entries in found.items():
        if entries:
            parts += [*([] if alone else [f"{name}:"]), _residue_table(entries)]
        else:
            parts.append(f"{name}: no residue, everything is as it was")
    return Group(*parts)


def whose(entry: Difference) -> str:
    """Who a difference belongs to, in words."""
    if entry.injection:
        return f"live injection {entry.injection}"
    return "somebody else's" if entry.foreign else "RESIDUE"


def _residue_table(entries: Sequence[Difference]) -> PlainTable:
    rows = [(whose(one), one.category, one.item, one.before or "absent", one.after or "absent") for one in entries]
    return PlainTable(("WHOSE", "KIND", "ITEM", "BEFORE", "NOW"), rows)


@node_group.command("label")
@node_argument()
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE|KEY-]...")
@pass_session
def label_command(session: Session, node: str, changes: tuple[str, ...]) -> None:
    """Show or set the labels of a node; KEY- takes one off.

    They choose nodes (`--nodes-labelled role=db`) and name groups that keep a quorum (quorum=etcd, see labctl
    limits). The lab remembers them through reset, down and up. Real hosts have theirs from the inventory.
    """
    labels = relabelled(session.node(node).labels, changes)
    if changes:
        session.provider().set_labels(node, labels)
    session.answer({"node": node, "labels": labels}, f"{node}: {labels_text(labels) or 'no labels'}")


def relabelled(labels: Mapping[str, str], changes: Sequence[str]) -> dict[str, str]:
    """The labels with these changes. Raises :class:`UsageError` for one that is none."""
    found = dict(labels)
    for change in changes:
        if change.endswith("-") and "=" not in change:
            found.pop(change[:-1], None)
        else:
            key, value = parse_label(change, "label")
            found[key] = value
    try:
        return dict(Node(name="n", address="n", labels=found).labels)
    except ValidationError as error:
        raise UsageError(first_problem(error), "at most 63 letters, digits, dots, hyphens, underscores") from None


COMMANDS = (node_group,)
