"""Being root where the login is not root's: by sudo, with a password where it wants one.

The password goes through standard input and never into a command line. sudo takes the first line only when it
asks, and whether it asks is the node's business: so a mark follows, and what comes before it never reaches the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labctl.lab.model import Node
from labctl.secret import from_environment, from_file

WITHOUT = ("sudo", "-n", "--")
"""Never asks."""

MARK = "groundfault: the input begins here"
_READER = 'while IFS= read -r line; do if [ "$line" = "$0" ]; then exec "$@"; fi; done; exit 1'

AskPassword = Callable[[Node], str | None]
"""Somebody who may know the password of a node's user; None: nobody can be asked."""


def with_password(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line for :func:`lead` on standard input. -k: never by what an earlier sudo left."""
    return ("sudo", "-k", "-S", "-p", "", "--", "/bin/sh", "-c", _READER, MARK, *argv)


def checking() -> tuple[str, ...]:
    """A command line that takes :func:`first_line` and changes nothing: a wrong password is tried once."""
    return ("sudo", "-k", "-S", "-p", "", "--", "true")


def first_line(password: str) -> bytes:
    """What sudo reads."""
    return password.encode() + b"\n"


def lead(password: str) -> bytes:
    """What goes before the program's own input."""
    return first_line(password) + MARK.encode() + b"\n"


def referred(node: Node) -> str | None:
    """The password at the place that the inventory names; None where it names none.

    Raises :class:`labctl.errors.UsageError` where nothing is there.
    """
    where = f"{node.name}: sudo_password"
    if node.sudo_password_env:
        return from_environment(node.sudo_password_env, f"{where}_env", "export the password for sudo")
    return from_file(node.sudo_password_file, f"{where}_file") if node.sudo_password_file else None


def nobody(node: Node) -> str | None:
    """Where nobody can be asked."""
    return None
