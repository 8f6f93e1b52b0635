"""Logging in on a node over SSH: the host key must be right, and each way to fail gets its own line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labctl.lab.model import Login, Node
from labctl.transport.base import ConnectError
from labctl.transport.host_keys import (
    Trusts,
    UnknownKeyError,
    WrongKeyError,
    check_named,
    checking,
    file_of,
    name_in_file,
    nobody,
    printable,
)

if TYPE_CHECKING:
    from fabric import Connection


def log_in(node: Node, timeout_s: float, trusts: Trusts = nobody) -> Connection:
    """An open connection, to be ended by :func:`log_out`. Raises :class:`ConnectError`.

    A node that brings its own key and host keys needs nothing of the user's SSH configuration. For other hosts
    that counts, as it does for ssh. `timeout_s` is for each login on the way; `trusts` is asked about servers of
    which nothing is known.
    """
    # Without a handler Python prints paramiko's log, tracebacks included, beside our one line.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    way: Connection | None = None
    try:
        for jump in node.jumps:
            name = f"{node.name}: jump host {jump.address}:{jump.port}"
            way = _open(jump, name, way, timeout_s, trusts)
        return _open(node.login, f"{node.name} at {node.address}:{node.ssh_port}", way, timeout_s, trusts)
    except ConnectError:
        log_out(way)
        raise


def log_out(connection: Connection | None) -> None:
    """End a connection, and those to the jump hosts on its way."""
    while connection is not None:
        way = connection.gateway
        connection.close()
        connection = way if way is not None and not isinstance(way, str) else None


def _open(login: Login, where: str, way: Connection | None, timeout_s: float, trusts: Trusts) -> Connection:
    import fabric
    import paramiko

    own = login.key is not None and login.known_hosts is not None
    patience: dict[str, Any] = {"banner_timeout": timeout_s, "auth_timeout": timeout_s}
    connection = fabric.Connection(
        login.address,
        user=login.user,
        port=login.port,
        gateway=way,
        config=fabric.Config(overrides={"load_ssh_configs": not own}),
        connect_timeout=timeout_s,
        connect_kwargs=patience | _credentials(login.key),
    )
    connection.client.set_missing_host_key_policy(checking(login, where, trusts))
    try:
        _load_known(connection.client, login, trusts)
        connection.open()
        check_named(login, connection.transport.get_remote_server_key())
    except (OSError, EOFError, paramiko.SSHException, UnknownKeyError, WrongKeyError) as error:
        connection.close()
        raise _explained(login, where, error, timeout_s) from None
    return connection


def _load_known(client: Any, login: Login, trusts: Trusts) -> None:
    """The host keys that are known. Their file may be made at the first contact, where one is possible."""
    first = bool(login.fingerprints) or trusts is not nobody
    if login.known_hosts is None:
        client.load_system_host_keys(None)
    elif login.known_hosts.exists() or not first:
        client.load_system_host_keys(str(login.known_hosts))


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


def _explained(login: Login, where: str, error: Exception, timeout_s: float) -> ConnectError:
    import paramiko
    from paramiko.ssh_exception import NoValidConnectionsError

    no_key = isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error)
    if isinstance(error, (UnknownKeyError, WrongKeyError, paramiko.BadHostKeyException)):
        return _about_the_key(login, where, error)
    if isinstance(error, paramiko.AuthenticationException) or no_key:
        return ConnectError("login", f"{where} does not let {login.user} in: {error}", "is the key the right one?")
    if isinstance(error, paramiko.ChannelException):
        return ConnectError(
            "unreachable", f"{where} cannot be reached from its jump host: {error}", "is the address right there?"
        )
    if isinstance(error, TimeoutError):
        return ConnectError(
            "timeout", f"SSH to {where} does not answer within {timeout_s:.0f} s", "is the node up?"
        )
    if isinstance(error, (NoValidConnectionsError, ConnectionRefusedError)):
        return ConnectError("refused", f"{where}: no SSH server listens there", "is the node up?")
    if isinstance(error, (paramiko.SSHException, EOFError)):
        return ConnectError(
            "closed", f"SSH to {where} failed: {error or 'it hung up'}", "is the node still booting?"
        )
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return ConnectError("host_key", f"SSH to {where}: {error.filename} cannot be read: {reason}")
    return ConnectError("unreachable", f"{where} cannot be reached: {reason}", "is the address right?")


def _about_the_key(login: Login, where: str, error: Any) -> ConnectError:
    """What to tell about a host key, with the fingerprints that people compare."""
    shown, file = printable(error.key), file_of(login)
    if isinstance(error, UnknownKeyError):
        return ConnectError(
            "host_key",
            f"the SSH host key of {where} is not known: it shows {shown}",
            f'on that host: ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub; if it is the same: fingerprint = "'
            f'{error.key.fingerprint}" in the inventory, or add the key to {file}',
        )
    if isinstance(error, WrongKeyError):
        return ConnectError(
            "host_key",
            f"{where} has another SSH host key than the inventory names: it shows {shown}, "
            f"named is {', '.join(login.fingerprints)}",
            "is it another machine? if it was installed anew: correct fingerprint in the inventory",
        )
    return ConnectError(
        "host_key",
        f"{where} has another SSH host key than the one recorded: it shows {shown}, "
        f"recorded is {printable(error.expected_key)}",
        f"is it another machine? if it was installed anew: ssh-keygen -R '{name_in_file(login)}' -f {file}",
    )
