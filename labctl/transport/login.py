"""Logging in on a node over SSH: the host key must be known, and each way to fail gets its own line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labctl.lab.model import Node
from labctl.transport.base import ConnectError

if TYPE_CHECKING:
    from fabric import Connection


def log_in(node: Node, timeout_s: float) -> Connection:
    """An open connection. Raises :class:`ConnectError`.

    A node that brings its own key and host keys needs nothing of the user's SSH configuration. For other hosts
    that counts, as it does for ssh: they may sit behind a jump host.
    """
    import fabric
    import paramiko

    # Without a handler Python prints paramiko's log, tracebacks included, beside our one line.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    own = node.ssh_key is not None and node.known_hosts is not None
    patience: dict[str, Any] = {"banner_timeout": timeout_s, "auth_timeout": timeout_s}
    connection = fabric.Connection(
        node.address,
        user=node.ssh_user,
        port=node.ssh_port,
        config=fabric.Config(overrides={"load_ssh_configs": not own}),
        connect_timeout=timeout_s,
        connect_kwargs=patience | _credentials(node.ssh_key),
    )
    connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        connection.client.load_system_host_keys(str(node.known_hosts) if node.known_hosts else None)
        connection.open()
    except (OSError, EOFError, paramiko.SSHException) as error:
        connection.close()
        raise _explained(node, error, timeout_s) from None
    return connection


def _credentials(key: Path | None) -> dict[str, Any]:
    """The key, read here: given a file name, paramiko tells a refused key as one of the wrong type."""
    import paramiko
    from paramiko.pkey import UnknownKeyType

    if key is None:
        return {}
    try:
        loaded = paramiko.PKey.from_path(key)
    except paramiko.PasswordRequiredException:
        return {"allow_agent": True, "look_for_keys": False}  # the SSH agent may hold it opened
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType) as error:
        reason = getattr(error, "strerror", None) or "it is not a private key"
        raise ConnectError("login", f"the SSH key {key} cannot be read: {reason}") from None
    return {"pkey": loaded, "allow_agent": False, "look_for_keys": False}


def _explained(node: Node, error: Exception, timeout_s: float) -> ConnectError:
    import paramiko
    from paramiko.ssh_exception import NoValidConnectionsError

    where = f"{node.name} at {node.address}:{node.ssh_port}"
    if isinstance(error, paramiko.BadHostKeyException):
        return ConnectError(
            "host_key", f"{where} has another SSH host key than the one recorded", "is it another machine?"
        )
    no_key = isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error)
    if isinstance(error, paramiko.AuthenticationException) or no_key:
        return ConnectError(
            "login", f"{where} does not let {node.ssh_user} in: {error}", "is the key the right one?"
        )
    if isinstance(error, TimeoutError):
        return ConnectError(
            "timeout", f"SSH to {where} does not answer within {timeout_s:.0f} s", "is the node up?"
        )
    if isinstance(error, (NoValidConnectionsError, ConnectionRefusedError)):
        return ConnectError("refused", f"{where}: no SSH server listens there", "is the node up?")
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        file = node.known_hosts or "~/.ssh/known_hosts"
        return ConnectError(
            "host_key", f"the SSH host key of {where} is not known", f"add it to {file} after checking it"
        )
    if isinstance(error, (paramiko.SSHException, EOFError)):
        return ConnectError(
            "closed", f"SSH to {where} failed: {error or 'it hung up'}", "is the node still booting?"
        )
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, FileNotFoundError):
        return ConnectError("host_key", f"SSH to {where}: {error.filename} cannot be read: {reason}")
    return ConnectError("unreachable", f"{where} cannot be reached: {reason}", "is the address right?")
