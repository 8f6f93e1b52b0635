"""`labctl doctor`: what this machine and each node can do, and what would help where they cannot."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Group, RenderableType
from rich.text import Text

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.fleet import Answers, ask_all, names_of, warn_all
from labctl.cli.options import labels_option, nodes_option
from labctl.cli.session import Session
from labctl.errors import ExitCode
from labctl.lab.model import Node
from labctl.lab.selfcheck import Check
from labctl.report.doctor import checks_table, matrix, reasons
from node_agent.api.views import ProbeReport


@click.command("doctor", cls=LabCommand)
@nodes_option(required=False, help="Only this node, and nothing of this machine; may be repeated.")
@labels_option()
@click.option("--again", is_flag=True, help="Probe the kernels anew, not from memory.")
@pass_session
def doctor(session: Session, nodes: tuple[str, ...], labels: tuple[str, ...], again: bool) -> int:
    """Check what this machine and each node's kernel can do.

    Every gap comes with its reason and a remedy. Ends with 3 where this machine lacks something, with 70 where a
    node that runs does not answer.
    """
    checks = () if nodes or labels else session.tools.check_machine(session.progress)
    asked, idle = _to_ask(session, nodes, labels)
    answers = _probe(session, asked, again)
    data = {
        "machine": [one.model_dump(mode="json") for one in checks],
        "nodes": {name: report.model_dump(mode="json") for name, report in answers.good.items()},
        "not_running": idle,
        "unreachable": {name: error.message for name, error in answers.bad.items()},
    }
    session.answer(data, _page(checks, answers, idle))
    warn_all(answers.bad)
    if answers.bad:
        return ExitCode.LAB_BROKE
    return ExitCode.UNSUPPORTED if any(one.verdict == "missing" for one in checks) else ExitCode.PASS


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
