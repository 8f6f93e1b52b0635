"""Whether an SSH server is the one that is meant: known keys, the inventory, or somebody says so.

A key that is right is written where ssh looks for it, so that each is asked about once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from labctl.lab.model import Login

if TYPE_CHECKING:
    import paramiko

Trusts = Callable[[str, str, str], bool]
"""Somebody who is asked at the first contact: with (server, kind of key, fingerprint), whether it is right."""


def nobody(where: str, kind: str, fingerprint: str) -> bool:
    """Where nobody can be asked."""
    return False


def file_of(login: Login) -> Path:
    """Where the host keys of a server are kept."""
    return login.known_hosts or Path("~/.ssh/known_hosts").expanduser()


def name_in_file(login: Login) -> str:
    """A server's name in known_hosts: sshd(8)."""
    return login.address if login.port == 22 else f"[{login.address}]:{login.port}"


def is_known(login: Login) -> bool:
    """Whether a key of that server is recorded."""
    import paramiko

    keys = paramiko.HostKeys()
    try:
        keys.load(str(file_of(login)))
    except OSError:
        return False
    return keys.lookup(name_in_file(login)) is not None


def record(login: Login, key: paramiko.PKey) -> None:
    """Add a key to the file. Raises OSError."""
    file = file_of(login)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name_in_file(login)} {key.get_name()} {key.get_base64()}\n"
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as handle:
        end = handle.seek(0, os.SEEK_END)
        torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
        handle.write((b"\n" if torn else b"") + line.encode())


def printable(key: paramiko.PKey) -> str:
    """A key as people compare it: "ssh-ed25519 SHA256:…"."""
    return f"{key.get_name()} {key.fingerprint}"


class WrongKeyError(Exception):
    """The server's key is not one of those that the inventory names."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__(printable(key))
        self.key = key


class UnknownKeyError(Exception):
    """Nothing is known of the server, and nobody says that its key is right."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__(printable(key))
        self.key = key


def checking(login: Login, where: str, trusts: Trusts) -> paramiko.MissingHostKeyPolicy:
    """What paramiko asks about a server that is not in known_hosts. Raises the errors above, and OSError."""
    import paramiko

    class Policy(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            check_named(login, key)
            if not login.fingerprints and not trusts(where, key.get_name(), key.fingerprint):
                raise UnknownKeyError(key)
            record(login, key)

    return Policy()


def check_named(login: Login, key: paramiko.PKey) -> None:
    """Raises :class:`WrongKeyError` where the inventory names other keys."""
    if login.fingerprints and key.fingerprint not in login.fingerprints:
        raise WrongKeyError(key)
