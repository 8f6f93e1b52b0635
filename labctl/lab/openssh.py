"""The OpenSSH command line for a node: the same options everywhere, and words that arrive as they were typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from labctl.lab.model import Node

CONNECT_TIMEOUT_S = 20


def ssh_argv(node: Node, command: Sequence[str] = (), *, terminal: bool = False, batch: bool = False) -> list[str]:
    """argv that runs `command` on a node, or a login shell without one.

    sshd hands one string to the user's shell, so the words are quoted here: what the remote program sees is
    exactly `command`. `batch` never asks for anything.
    """
    argv = ["ssh", "-p", str(node.ssh_port), "-l", node.ssh_user, "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    if node.ssh_key and node.known_hosts:
        argv += ["-F", "none"]  # it brings all it needs, and the user's configuration is not to lead astray
    if node.ssh_key:
        argv += ["-i", str(node.ssh_key), "-o", "IdentitiesOnly=yes"]
    if node.known_hosts:
        argv += ["-o", f"UserKnownHostsFile={_quoted(node.known_hosts)}", "-o", "StrictHostKeyChecking=yes"]
    if batch:
        argv += ["-o", "BatchMode=yes"]
    if terminal:
        argv.append("-t")
    # Without a user's agent, X11 or multiplexing: a lab node gets nothing that it was not given.
    argv += ["-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "LogLevel=ERROR", "--", node.address]
    return [*argv, shlex.join(command)] if command else argv


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
