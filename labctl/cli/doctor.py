"""`labctl doctor`: what this machine and each node can do, and what would help where they cannot."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Group, RenderableType
from rich.text import Text

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.certificates import ending
from labctl.cli.fleet import Answers, ask_all, names_of, some, warn_all
from labctl.cli.lab import has_agent
from labctl.cli.options import labels_option, nodes_option
from labctl.cli.session import Session
from labctl.errors import ExitCode
from labctl.lab.model import Node
from labctl.lab.selfcheck import Check
from labctl.report.doctor import checks_table, matrix, reasons
from labctl.report.fleet import Seen, by_kind, kinds, kinds_table
from node_agent.api.views import ProbeReport


@click.command("doctor", cls=LabCommand)
@nodes_option(required=False, help="Only this node, and nothing of this machine; may be repeated.")
@labels_option()
@click.option(
    "--all", "fleet", is_flag=True, help="Every node and what it is; those that are alike share a column."
)
@click.option("--again", is_flag=True, help="Probe the kernels anew, not from memory.")
@pass_session
def doctor(session: Session, nodes: tuple[str, ...], labels: tuple[str, ...], fleet: bool, again: bool) -> int:
    """Check what this machine and each node's kernel can do.

    Every gap comes with its reason and a remedy. Ends with 3 where this machine lacks something, with 70 where a
    node that runs does not answer. Certificates that end soon are warned of.
    """
    if fleet:
        return _fleet(session, nodes, labels, again)
    checks = () if nodes or labels else session.tools.check_machine(session.progress)
    asked, idle = _to_ask(session, nodes, labels)
    answers = _probe(session, asked, again)
    ends = ending(session, asked)
    data = {
        "machine": [one.model_dump(mode="json") for one in checks],
        "nodes": {name: report.model_dump(mode="json") for name, report in answers.good.items()},
        "not_running": idle,
        "unreachable": {name: error.message for name, error in answers.bad.items()},
        "certificates": ends,
    }
    session.answer(data, _page(checks, answers, idle))
    _warn(ends)
    warn_all(answers.bad)
    if answers.bad:
        return ExitCode.LAB_BROKE
    return ExitCode.UNSUPPORTED if any(one.verdict == "missing" for one in checks) else ExitCode.PASS


def _fleet(session: Session, names: Sequence[str], labels: Sequence[str], again: bool) -> int:
    """What each kind of node is and can do."""
    asked, idle = _to_ask(session, names, labels)
    with session.patience(f"asking {names_of(asked)}"):
        answers = ask_all(asked, lambda node: _seen(session, node, again))
    without = [name for name in answers.bad if has_agent(session, session.node(name)) is False]
    bad = {name: error for name, error in answers.bad.items() if name not in without}
    groups = kinds(answers.good)
    ends = ending(session, [node for node in asked if node.name in answers.good])
    data = {
        "kinds": list(groups.values()),
        "facts": {name: one.facts.model_dump(mode="json") for name, one in answers.good.items()},
        "nodes": {name: one.report.model_dump(mode="json") for name, one in answers.good.items()},
        "without_agent": without,
        "not_running": idle,
        "unreachable": {name: error.message for name, error in bad.items()},
        "certificates": ends,
    }
    parts: list[RenderableType] = []
    if groups:
        reports = by_kind(answers.good, groups)
        why = reasons(reports)
        parts += [kinds_table(answers.good, groups), "", matrix(reports), *([""] if why else []), *map(Text, why)]
    parts += ["", f"without an agent: {some(without)}"] if without else []
    parts += ["", f"not running: {some(idle)}"] if idle else []
    session.answer(data, Group(*parts))
    _warn(ends)
    warn_all(bad)
    return ExitCode.LAB_BROKE if bad else ExitCode.PASS


def _seen(session: Session, node: Node, again: bool) -> Seen:
    agent = session.agent(node)
    return Seen(agent.facts(), agent.probe(again=again))


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"warning: {line}", err=True)


def _to_ask(session: Session, names: Sequence[str], labels: Sequence[str]) -> tuple[list[Node], list[str]]:
    """The nodes that run, and the names of those that do not; a lab that is not there yet has neither."""
    if not names and not labels and session.lab not in session.tools.list_labs():
        return [], []
    wanted = {node.name for node in session.nodes(names, labels)}
    status = [one for one in session.provider().status() if one.node.name in wanted]
    return [one.node for one in status if one.running], [one.node.name for one in status if not one.running]


def _probe(session: Session, nodes: Sequence[Node], again: bool) -> Answers[ProbeReport]:
    if not nodes:
        return Answers({}, {})
    with session.patience(f"asking {names_of(nodes)}"):
        return ask_all(nodes, lambda node: session.agent(node).probe(again=again))


def _page(checks: Sequence[Check], answers: Answers[ProbeReport], idle: Sequence[str]) -> RenderableType:
    parts: list[RenderableType] = [checks_table(checks)] if checks else []
    if answers.good:
        why = reasons(answers.good)
        parts += [*([""] if parts else []), matrix(answers.good), *([""] if why else []), *map(Text, why)]
    if idle:
        parts += ["", f"not running: {', '.join(idle)}"]
    return Group(*parts)


COMMANDS = (doctor,)
