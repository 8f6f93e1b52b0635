"""Getting at one node: a shell, its logs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.options import node_argument
from labctl.cli.session import Session
from labctl.errors import ExitCode, LabError, UnsupportedError
from labctl.lab.footprint import UNIT
from labctl.lab.model import Node
from labctl.lab.openssh import ssh_argv
from labctl.transport import sudo

LOGS_TIMEOUT_S = 120.0
SSH_BROKE = 255
"""The exit status by which OpenSSH says that it failed itself: ssh(1)."""

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: ECMA-48, 5.4
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands
    r"|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f]"
)


@click.command(
    "ssh", cls=LabCommand, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
@node_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@pass_session
def ssh(session: Session, node: str, command: tuple[str, ...]) -> int:
    """Log in to a node, or run a command there.

    The command's exit status is passed on. Its words arrive as they are typed; for a shell's features say:
    -- sh -c '...'
    """
    words = command[1:] if command[:1] == ("--",) else command
    both_terminals = sys.stdin.isatty() and sys.stdout.isatty()
    return session.tools.execute(ssh_argv(session.node(node), words, terminal=bool(words) and both_terminals))


@click.command("logs", cls=LabCommand)
@node_argument()
@click.option("--agent", "source", flag_value="agent", default=True, help="The agent's log.  [default]")
@click.option("--kernel", "source", flag_value="kernel", help="The kernel's log.")
@click.option("--console", "source", flag_value="console", help="The serial console, also of a node that is down.")
@click.option("--lines", type=click.IntRange(1, 100_000), default=100, show_default=True, help="The last so many.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines as they come, until Ctrl-C.")
@pass_session
def logs(session: Session, node: str, source: str, lines: int, follow: bool) -> int:
    """Show the last lines of a node's log."""
    found = session.node(node)
    if follow:
        return session.tools.execute(_follow_argv(session, found, source, lines))
    if source == "console":
        text = console_text(_console_file(session, found))
    else:
        with session.patience(f"asking {node}"):
            text = _by_ssh(found, log_command(source, lines))
    last = text.splitlines()[-lines:]
    session.answer({"node": node, "source": source, "lines": last}, "\n".join(last))
    return ExitCode.PASS


def log_command(source: str, lines: int) -> tuple[str, ...]:
    """What to run on the node."""
    if source == "kernel":
        return ("dmesg", "--time-format", "iso")
    # Where others look after a service on the node, the agent has a journal of its own.
    namespace = "--namespace=+groundfault"
    lines_of_it = ("--unit", UNIT, namespace, "--lines", str(lines))
    return ("journalctl", *lines_of_it, "--no-pager", "--output", "short-iso")


def _follow_argv(session: Session, node: Node, source: str, lines: int) -> list[str]:
    if source == "console":
        return ["tail", "--follow=name", "--lines", str(lines), "--", str(_console_file(session, node))]
    command = (*log_command(source, lines), "--follow")
    if node.ssh_user != "root":  # on a terminal sudo asks for itself
        command = ("sudo", "--", *command) if sys.stdin.isatty() else (*sudo.WITHOUT, *command)
    return ssh_argv(node, command, terminal=sys.stdin.isatty() and node.ssh_user != "root")


def _as_root(node: Node, command: tuple[str, ...]) -> tuple[tuple[str, ...], bytes]:
    """What to run for a command, and what to give it."""
    if node.ssh_user == "root":
        return command, b""
    password = sudo.referred(node)
    return (sudo.with_password(command), sudo.lead(password)) if password else ((*sudo.WITHOUT, *command), b"")


def _by_ssh(node: Node, command: tuple[str, ...]) -> str:
    words, lead = _as_root(node, command)
    if lead:  # a wrong password would be tried with the next line of the input, too
        tried = _ran(node, sudo.checking(), lead.splitlines(keepends=True)[0])
        if tried.returncode not in (0, SSH_BROKE):
            said = tried.stderr.decode(errors="replace").strip().splitlines()
            raise LabError(f"{node.name}: sudo refuses {node.ssh_user}: {said[-1] if said else 'no message'}")
    done = _ran(node, words, lead)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        what = (
            "SSH failed" if done.returncode == SSH_BROKE else f"{command[0]} ended with status {done.returncode}"
        )
        raise LabError(f"{node.name}: {what}: {said[-1] if said else 'no message'}")
    return done.stdout.decode(errors="replace")


def _ran(node: Node, words: tuple[str, ...], content: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = ssh_argv(node, words, batch=True)
    try:
        return subprocess.run(argv, capture_output=True, timeout=LOGS_TIMEOUT_S, check=False, input=content)
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{node.name}: no log within {LOGS_TIMEOUT_S:g} s", "labctl logs --console needs no SSH"
        ) from None


def _console_file(session: Session, node: Node) -> Path:
    path = session.provider().console(node.name)
    if path is None:
        raise UnsupportedError(
            f"{node.name}: provider {session.provider().kind} has no serial console", "try --kernel or --agent"
        )
    return path


def console_text(path: Path) -> str:
    """The text of a serial console, without what moves cursors and paints colours."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ""
    return _CONTROL.sub("", raw.decode(errors="replace").replace("\r\n", "\n"))


COMMANDS = (ssh, logs)
