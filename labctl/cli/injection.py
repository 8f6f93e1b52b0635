"""Injections that are there: list, watch, recover, extend, stop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence, Sized

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.fleet import ask_all, failure, names_of, some, warn_all
from labctl.cli.options import (
    complete_injections,
    duration_option,
    injection_argument,
    labels_option,
    nodes_option,
    within_option,
)
from labctl.cli.recovering import Outcome, find_injections, recover_everything, recover_ids
from labctl.cli.session import Session
from labctl.errors import ExitCode, LabctlError, UsageError
from labctl.lab.model import Node
from labctl.report.injections import evidence_text, injections_table, lease_text, recovered_line


@click.command("injections", cls=LabCommand)
@click.option("--all", "ended", is_flag=True, help="Also those that are over.")
@nodes_option(required=False, help="Only this node; may be repeated.")
@labels_option()
@within_option()
@pass_session
def injections(session: Session, ended: bool, nodes: tuple[str, ...], labels: tuple[str, ...]) -> int:
    """List the injections of all nodes."""
    chosen = session.nodes(nodes, labels)
    with session.patience(f"asking {names_of(chosen)}"):
        answers = find_injections(session, chosen, ended=ended)
    found = [one for several in answers.good.values() for one in several]
    warn_all(answers.bad)
    data = {"injections": [one.model_dump(mode="json") for one in found], "unreachable": _errors_data(answers.bad)}
    nothing = f"no {'' if ended else 'live '}injections{_as_far_as_known(answers.good, answers.bad)}"
    session.answer(data, injections_table(found, dt.datetime.now()) if found else nothing)
    return ExitCode.LAB_BROKE if answers.bad else ExitCode.PASS


@click.command("recover", cls=LabCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=complete_injections)
@click.option("--all", "everything", is_flag=True, help="Everything on every node of the lab.")
@nodes_option(required=False, help="Everything on this node; may be repeated.")
@labels_option("Everything on the nodes with this label; may be repeated: all of them.")
@within_option()
@pass_session
def recover(
    session: Session, ids: tuple[str, ...], everything: bool, nodes: tuple[str, ...], labels: tuple[str, ...]
) -> int:
    """Take injections back: by id, by node, or all.

    An id is searched on all nodes of the lab. Ends with 75 where something could not be undone or a node could not
    be asked.
    """
    if sum((bool(ids), everything, bool(nodes or labels))) != 1:
        raise UsageError(
            "give injection ids, or --node, or --all: exactly one of them", "see: labctl recover --help"
        )
    chosen = session.nodes(nodes, labels)
    with session.patience(f"recovering {some(ids) or 'everything'} on {names_of(chosen)}"):
        outcome = recover_ids(session, chosen, ids) if ids else recover_everything(session, chosen)
    return report_outcome(session, outcome)


@click.command("stop", cls=LabCommand)
@click.option("--clear", is_flag=True, help="Allow new faults again.")
@within_option()
@pass_session
def stop(session: Session, clear: bool) -> int:
    """Heal everything on all nodes and refuse new faults.

    Until `labctl stop --clear` allows them again.
    """
    nodes = session.nodes()
    if clear:
        return _clear(session, nodes)
    with session.patience(f"recovering everything on {names_of(nodes)}"):
        outcome = recover_everything(session, nodes, stop=True)
    stopped = [node.name for node in nodes if node.name not in outcome.unreachable]
    again = session.command("stop --clear")
    tail = f"new faults are refused on {some(stopped)} until: {again}" if stopped else ""
    return report_outcome(session, outcome, tail, stopped=stopped)


def _clear(session: Session, nodes: Sequence[Node]) -> int:
    with session.patience(f"asking {names_of(nodes)}"):
        answers = ask_all(nodes, lambda node: session.injections(node).recover(stop="clear"))
    if answers.bad:
        raise failure(answers, f"cleared on: {some(answers.good) or 'no node'}")
    session.answer({"stopped": []}, f"new faults are allowed on {some(answers.good)}")
    return ExitCode.PASS


@click.command("extend", cls=LabCommand)
@injection_argument()
@duration_option(required=True, help="The new lease, counted from now.")
@pass_session
def extend(session: Session, injection_id: str, lease_s: float) -> int:
    """Give a live injection a new lease, counted from now."""
    holders = require_injection(session, injection_id)
    with session.patience(f"asking {names_of(holders)}"):
        answers = ask_all(holders, lambda node: session.injections(node).extend(injection_id, lease_s))
    if answers.bad:
        raise failure(answers, f"extended on: {some(answers.good) or 'no node'}")
    now = dt.datetime.now()
    data = {"injections": [one.model_dump(mode="json") for one in answers.good.values()]}
    lines = [f"{one.id} ({one.fault} on {one.node}): {lease_text(one, now)}" for one in answers.good.values()]
    session.answer(data, "\n".join(lines))
    return ExitCode.PASS


@click.command("evidence", cls=LabCommand)
@injection_argument()
@pass_session
def evidence(session: Session, injection_id: str) -> int:
    """Show what an injection left on its nodes.

    Counters, the signs of a real failure that were seen or were expected and not seen, and the kernel's lines.
    """
    holders = require_injection(session, injection_id)
    with session.patience(f"asking {names_of(holders)}"):
        answers = find_injections(session, holders, [injection_id], ended=True)
    if answers.bad:
        raise failure(answers, f"answered: {some(answers.good) or 'no node'}")
    found = [one for several in answers.good.values() for one in several]
    data = {"injections": [one.model_dump(mode="json") for one in found]}
    session.answer(data, "\n\n".join(evidence_text(one, session.width) for one in found))
    return ExitCode.PASS


def require_injection(session: Session, injection_id: str) -> tuple[Node, ...]:
    """The nodes that know an injection. Raises :class:`UsageError` where none does, saying who was not asked."""
    nodes = session.nodes()
    with session.patience(f"asking {names_of(nodes)}"):
        answers = find_injections(session, nodes, [injection_id], ended=True)
    holders = tuple(node for node in nodes if answers.good.get(node.name))
    if holders:
        warn_all(answers.bad)
        return holders
    if answers.bad:
        raise failure(answers, f"injection {injection_id} is not on the nodes that answered")
    raise UsageError(
        f"no node of lab {session.lab!r} has an injection {injection_id!r}", session.command("injections --all")
    )


def report_outcome(session: Session, outcome: Outcome, tail: str = "", *, stopped: Sequence[str] = ()) -> int:
    """Say what was healed and what was not; 75 where a node is, or may be, dirty."""
    code = ExitCode.PASS if outcome.clean else ExitCode.NODE_DIRTY
    data = {
        "recovered": [one.model_dump(mode="json") for one in outcome.recovered],
        "stuck": [one.model_dump(mode="json") for one in outcome.stuck],
        "not_found": list(outcome.absent),
        "unreachable": _errors_data(outcome.unreachable),
        "stopped": list(stopped),
        "exit_code": int(code),
    }
    session.answer(data, "\n".join(_outcome_lines(outcome, tail)))
    warn_all(outcome.unreachable, "; its faults heal when their leases end")
    return code


def _as_far_as_known(good: Sized, bad: Sized) -> str:
    """What an absence is worth: nothing where nobody could be asked."""
    if not bad:
        return ""
    return " on the nodes that answered" if good else " known: no node answered"


def _outcome_lines(outcome: Outcome, tail: str) -> list[str]:
    lines = [recovered_line(one) for one in (*outcome.recovered, *outcome.stuck)]
    where = _as_far_as_known(outcome.answered, outcome.unreachable) or " on any node"
    lines += [f"{absent}: nothing to recover, no such injection{where}" for absent in outcome.absent]
    if not lines:
        where = _as_far_as_known(outcome.answered, outcome.unreachable)
        lines = [f"nothing to recover: no live injections{where}"]
    return [*lines, *([tail] if tail else [])]


def _errors_data(errors: Mapping[str, LabctlError]) -> dict[str, str]:
    return {name: error.message for name, error in errors.items()}


COMMANDS = (injections, recover, stop, extend, evidence)
