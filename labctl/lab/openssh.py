"""The OpenSSH command line for a node: the same options everywhere, and words that arrive as they were typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from labctl.lab.model import Login, Node

CONNECT_TIMEOUT_S = 20


def ssh_argv(node: Node, command: Sequence[str] = (), *, terminal: bool = False, batch: bool = False) -> list[str]:
    """argv that runs `command` on a node, or a login shell without one.

    sshd hands one string to the user's shell, so the words are quoted here: what the remote program sees is
    exactly `command`. `batch` never asks for anything.
    """
    argv = ["ssh", *_options(node.login, batch), *_way(node.jumps, batch)]
    if terminal:
        argv.append("-t")
    # Without a user's agent, X11 or multiplexing: a lab node gets nothing that it was not given.
    argv += ["-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "LogLevel=ERROR", "--", node.address]
    return [*argv, shlex.join(command)] if command else argv


def _options(login: Login, batch: bool) -> list[str]:
    argv = ["-p", str(login.port), "-l", login.user, "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    if login.key and login.known_hosts:
        argv += ["-F", "none"]  # it brings all it needs, and the user's configuration is not to lead astray
    if login.key:
        argv += ["-i", str(login.key), "-o", "IdentitiesOnly=yes"]
    if login.known_hosts:
        argv += ["-o", f"UserKnownHostsFile={_quoted(login.known_hosts)}", "-o", "StrictHostKeyChecking=yes"]
    if batch:
        argv += ["-o", "BatchMode=yes"]
    return argv


def _way(jumps: Sequence[Login], batch: bool) -> list[str]:
    """By the jump hosts. Not -J: that takes no key and no known_hosts for them (ssh(1))."""
    if not jumps:
        return []
    *before, last = jumps
    words = ["ssh", *_options(last, batch), *_way(before, batch)]
    command = shlex.join([*words, "-o", "LogLevel=ERROR", "-W", "TO", "--", last.address])
    # What is quoted once more for each jump host must not have its tokens taken by the wrong ssh.
    return ["-o", f"ProxyCommand={command.replace('%', '%%').replace('-W TO', '-W %h:%p')}"]


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
