"""Running commands on a node as root."""

from __future__ import annotations

import io
import shlex
from typing import IO, cast

from labctl.errors import LabError, UnsupportedError
from labctl.lab.remote import COMMAND_TIMEOUT_S, Output, Remote, Running
from labctl.transport import sudo

_NOT_THERE = 127


class Root:
    """Runs commands on a node as root, by sudo where the login is not root's.

    Raises :class:`UnsupportedError` where that cannot be; `ask` is for a password that the inventory does not
    refer to, and is asked once.
    """

    def __init__(self, remote: Remote, ask: sudo.AskPassword = sudo.nobody) -> None:
        self.remote = remote
        self.name = remote.node.name
        self._password = ""
        self._plain = remote.run(("id", "-u")).stdout.strip() == "0"
        if not self._plain:
            without = remote.run((*sudo.WITHOUT, "true"))
            if without.status != 0:
                self._password = self._found(without, ask)

    def _found(self, without: Output, ask: sudo.AskPassword) -> str:
        """The password, tried. `without`: what sudo says where it gets none."""
        node = self.remote.node
        user, name = node.ssh_user, self.name
        if without.status == _NOT_THERE:
            raise UnsupportedError(
                f"{name}: user {user} is not root, and there is no sudo; the agent has to be root's: it changes "
                "the kernel",
                "install sudo, or name root in the inventory",
            )
        password = sudo.referred(node)
        password = ask(node) if password is None else password
        if not password:
            raise UnsupportedError(
                f"{name}: user {user} is not root and may not use sudo without a password; the agent has to be "
                "root's: it changes the kernel",
                f"sudo_password_env or sudo_password_file in the inventory, a sudoers rule with NOPASSWD for "
                f"{user}, or root's login",
            )
        tried = self.remote.run(sudo.checking(), stdin=io.BytesIO(sudo.first_line(password)))
        if tried.status != 0:
            said = [line for line in tried.stderr.splitlines() if line.strip()] or ["no message"]
            raise UnsupportedError(
                f"{name}: sudo refuses {user}: {said[-1].strip()}",
                "is the password right, and the user in sudoers?",
            )
        return password

    def argv(self, *argv: str) -> tuple[str, ...]:
        """What is run for a command."""
        if self._plain:
            return argv
        return sudo.with_password(argv) if self._password else (*sudo.WITHOUT, *argv)

    def _input(self, stdin: IO[bytes] | None) -> IO[bytes] | None:
        return cast("IO[bytes]", _After(sudo.lead(self._password), stdin)) if self._password else stdin

    def ask(self, *argv: str, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> Output:
        """Run a command whose status is an answer."""
        return self.remote.run(self.argv(*argv), stdin=self._input(stdin), timeout_s=timeout_s)

    def run(self, *argv: str, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command that must succeed. Raises :class:`LabError` with what it said."""
        done = self.ask(*argv, stdin=stdin, timeout_s=timeout_s)
        if done.status != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise LabError(f"{self.name}: {shlex.join(argv[:2])} ended with status {done.status}: {said}")
        return done.stdout

    def write(self, path: str, content: bytes, mode: str, beside: str = "") -> None:
        """Write a file so that it is there as a whole or not at all, and never readable by others meanwhile.

        `beside`: where it is made first; on the same file system.
        """
        fresh = beside or f"{path}.new"
        self.run("install", "-m", mode, "/dev/stdin", fresh, stdin=io.BytesIO(content))
        self.run("mv", "-T", fresh, path)

    def start(self, *argv: str) -> Running:
        """Start a command that goes on until its input ends: at :meth:`Running.end`, or with the connection."""
        return self.remote.start(self.argv(*argv), sudo.lead(self._password) if self._password else b"")


class _After(io.RawIOBase):
    """Some bytes, then another input. Only :meth:`read` counts."""

    def __init__(self, first: bytes, then: IO[bytes] | None) -> None:
        self._first, self._then = first, then

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._first:
            found, self._first = self._first, b""
            return found
        return self._then.read(size) if self._then else b""
