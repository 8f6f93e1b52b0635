"""`labctl audit`: who asked a node's agent for changes, from the log on the node."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.fleet import ask_all, failure, names_of, some, warn_all
from labctl.cli.options import complete_nodes, labels_option
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.report.text import PlainTable
from node_agent.api.views import AuditEntry, AuditReport

MOST = 2000
_SHOWN = 60


@click.command("audit", cls=LabCommand)
@click.argument("names", nargs=-1, metavar="NODE...", shell_complete=complete_nodes)
@labels_option()
@click.option("--last", type=click.IntRange(1, MOST), default=50, show_default=True, help="So many of each node.")
@click.option("--who", metavar="NAME", help="Only what this operator asked for.")
@pass_session
def audit(session: Session, names: tuple[str, ...], labels: tuple[str, ...], last: int, who: str | None) -> int:
    """Show who asked a node for changes, what, when, and how it ended.

    Times are by the node's clock. Ends with 1 where a log is not as its agent wrote it.
    """
    if not names and not labels:
        raise UsageError("NODE is missing", "names of nodes, or --nodes-labelled KEY=VALUE")
    nodes = session.nodes(names, labels)
    with session.patience(f"asking {names_of(nodes)}"):
        answers = ask_all(nodes, lambda node: session.agent(node).audit(limit=MOST if who else last))
    if not answers.good:
        raise failure(answers, "no log was read")
    found = {name: _only(report, who, last) for name, report in answers.good.items()}
    damaged = {name: report.problems for name, report in found.items() if report.problems}
    code = ExitCode.LAB_BROKE if answers.bad else ExitCode.FAIL if damaged else ExitCode.PASS
    data = {
        "nodes": {name: report.model_dump(mode="json") for name, report in found.items()},
        "unreachable": {name: error.message for name, error in answers.bad.items()},
        "exit_code": int(code),
    }
    session.answer(data, table(found))
    for name, problems in damaged.items():
        click.echo(f"warning: {name}: the log is not as it was written: {some(problems, '; ')}", err=True)
    warn_all(answers.bad)
    return code


def _only(report: AuditReport, who: str | None, last: int) -> AuditReport:
    chosen = [one for one in report.entries if who is None or one.who == who]
    return report.model_copy(update={"entries": tuple(chosen[-last:])})


def table(found: Mapping[str, AuditReport]) -> PlainTable:
    """All entries, by time; the node where there are several."""
    several = len(found) > 1
    entries = [(one.time_unix_s, name, one) for name, report in found.items() for one in report.entries]
    rows = [_row(name if several else "", one) for _, name, one in sorted(entries, key=lambda entry: entry[:2])]
    heads = ("WHEN", "NODE", "WHO", "FROM", "ASKED FOR", "RESULT") if several else (
        "WHEN", "WHO", "FROM", "ASKED FOR", "RESULT")  # fmt: skip
    return PlainTable(heads, rows)


def _row(node: str, one: AuditEntry) -> tuple[str, ...]:
    when = dt.datetime.fromtimestamp(one.time_unix_s, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    result = one.result or "none: the agent ended before"
    result += f": {one.message}" if one.message else ""
    result += f" ({one.took_s:.1f} s)" if one.took_s else ""
    return (when, *((node,) if node else ()), one.who, one.where, asked_for(one), result)


def asked_for(one: AuditEntry) -> str:
    """A request in a few words."""
    what = dict(one.what)
    words = [one.method.lower() or "to be let in"]
    words += [str(what.pop(key)) for key in ("fault", "id") if key in what]
    words += [f"{key}={_short(value)}" for key, value in what.items()]
    return " ".join(words)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


COMMANDS = (audit,)
