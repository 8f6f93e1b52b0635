"""`labctl power`: a node's power switch, whoever made the machine."""

from __future__ import annotations

import sys
import time

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.lab import has_agent
from labctl.cli.options import node_argument
from labctl.cli.session import Session
from labctl.errors import ExitCode, LabError, UsageError
from labctl.lab.model import Node
from labctl.power.model import Power

REAL_BOOT_S = 1200.0
"""How long a real machine may take from power to an answer: firmware of large servers tests memory for minutes."""

_LOOK_S = 2.0


@click.command("power", cls=LabCommand)
@node_argument()
@click.argument("action", type=click.Choice(["off", "on", "cycle", "status"]))
@click.option("--graceful", is_flag=True, help="Ask the system to shut down, instead of pulling the plug.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before a real machine is switched off.")
@pass_session
def power(session: Session, node: str, action: str, graceful: bool, yes: bool) -> int:
    """Switch a node's power, or show it.

    off pulls the plug: what was not flushed is lost. cycle is off, then on. After on, waits for the agent.

    Real machines are switched by their management controller (BMC) over Redfish: `bmc` in the inventory.
    """
    if graceful and action not in ("off", "cycle"):
        raise UsageError(f"--graceful: {action} has no such way", "off or cycle")
    found = session.node(node)
    switch = session.provider().power(node)
    if action == "status":
        with session.patience(f"asking for the power of {switch.what}"):
            state = switch.state()
        session.answer({"node": node, "power": state, "changed": False}, f"{node} is {state}")
        return ExitCode.PASS
    if action != "on":
        _confirm(session, switch, action, graceful, yes)
    changed = _act(session, switch, found, action, graceful)
    state = "off" if action == "off" else "on"
    session.answer(
        {"node": node, "power": state, "changed": changed},
        f"{node} is {state}" if changed else f"{node} was {state}",
    )
    return ExitCode.PASS


def _confirm(session: Session, switch: Power, action: str, graceful: bool, yes: bool) -> None:
    """Nobody's server loses power by a slip of the finger. The lab's own machines do."""
    if yes or not switch.real:
        return
    what = "shut down" if graceful else "pull the plug of"
    if session.json or not sys.stdin.isatty():
        raise UsageError(f"this would {what} {switch.what}: a real machine", "if you mean it, add --yes")
    click.confirm(f"{action}: {what} {switch.what}?", abort=True, err=True)


def _act(session: Session, switch: Power, node: Node, action: str, graceful: bool) -> bool:
    """True where something was changed."""
    changed = False
    if action in ("off", "cycle"):
        how = "shutting down" if graceful else "pulling the plug of"
        with session.progress.task(f"{how} {node.name}") as task:
            changed = switch.off(graceful, task)
    if action in ("on", "cycle"):
        with session.progress.task(f"giving power to {node.name}") as task:
            changed = switch.on(task) or changed
        _await(session, switch, node)
    return changed


def _await(session: Session, switch: Power, node: Node) -> None:
    """Until the node can be logged in to, and its agent, where it has one, answers."""
    if switch.real:
        with session.progress.task(f"waiting until {node.name} has booted"):
            _await_login(session, node)
    if has_agent(session, node) is not False:
        ready = session.tools.answering if switch.real else session.tools.ready
        with session.progress.task(f"waiting for the agent of {node.name}"):
            ready(session.lab)(node)


def _await_login(session: Session, node: Node) -> None:
    deadline = time.monotonic() + REAL_BOOT_S
    while True:
        status = next(one for one in session.provider().status() if one.node.name == node.name)
        if status.running:
            return
        if time.monotonic() >= deadline:
            late = f"{node.name} has power and did not come up within {REAL_BOOT_S:g} s: {status.detail}"
            raise LabError(late, "look at its console")
        time.sleep(_LOOK_S)


COMMANDS = (power,)
