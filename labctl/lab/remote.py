"""Running commands on a node over SSH, for installing and removing the agent.

Words arrive as they are given: sshd hands one string to a shell, so they are quoted. Nothing is written to a
temporary file of the node: data goes through standard input.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.transport.host_keys import Trusts, nobody

if TYPE_CHECKING:
    import fabric
    import paramiko

CONNECT_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 120.0
ENDING_S = 10.0
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Output:
    """How a command on a node ended."""

    status: int
    stdout: str
    stderr: str


class Running(Protocol):
    """A command that goes on while others run."""

    def line(self, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Its next line of output; empty where it has ended. Raises :class:`LabError` where SSH breaks."""

    def send(self, text: bytes) -> None:
        """Give it more input. Raises :class:`LabError` where SSH breaks."""

    def end(self) -> None:
        """End its input, and wait for it. Never raises: a connection that is lost has ended it, too."""


class Remote(Protocol):
    """A node one can run commands on."""

    @property
    def node(self) -> Node: ...

    def run(
        self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Output:
        """Run a command to its end, whatever its status. Raises :class:`LabError` where SSH breaks."""

    def start(self, argv: Sequence[str], first: bytes = b"") -> Running:
        """Start a command and give it `first`, keeping its input open. Raises as :meth:`run`."""


LogIn = Callable[[Node, Trusts], AbstractContextManager[Remote]]
"""What :func:`connected` is: somebody who logs in on a node."""


class SshRemote:
    """A node over SSH. :func:`connected` makes and closes it."""

    def __init__(self, node: Node, connection: fabric.Connection) -> None:
        self.node, self._connection = node, connection

    def run(
        self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Output:
        """Run a command to its end, whatever its status. Raises :class:`LabError` where SSH breaks."""
        import paramiko

        try:
            return self._run(shlex.join(argv), stdin, timeout_s)
        except TimeoutError:
            raise LabError(f"{self.node.name}: {argv[0]} did not end within {timeout_s:g} s") from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._broke(argv, error) from None

    def start(self, argv: Sequence[str], first: bytes = b"") -> Running:
        """Start a command and give it `first`, keeping its input open. Raises as :meth:`run`."""
        import paramiko

        try:
            channel: paramiko.Channel = self._connection.transport.open_session(timeout=CONNECT_TIMEOUT_S)
            channel.exec_command(shlex.join(argv))
            channel.sendall(first)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._broke(argv, error) from None
        return _SshRunning(self.node.name, channel)

    def _broke(self, argv: Sequence[str], error: Exception) -> LabError:
        return LabError(f"{self.node.name}: the SSH connection broke during {argv[0]}: {error}")

    def _run(self, command: str, stdin: IO[bytes] | None, timeout_s: float) -> Output:
        channel: paramiko.Channel = self._connection.transport.open_session(timeout=CONNECT_TIMEOUT_S)
        with channel:
            channel.settimeout(timeout_s)
            channel.exec_command(command)
            _send(channel, stdin)
            out, err = channel.makefile("rb").read(), channel.makefile_stderr("rb").read()
            if not channel.status_event.wait(timeout_s):
                raise TimeoutError
            status = channel.recv_exit_status()
        return Output(status, out.decode(errors="replace"), err.decode(errors="replace"))


class _SshRunning:
    """:class:`Running` in a channel of its own."""

    def __init__(self, name: str, channel: paramiko.Channel) -> None:
        self._name, self._channel = name, channel
        self._output = channel.makefile("r")

    def line(self, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        self._channel.settimeout(timeout_s)
        try:
            return str(self._output.readline()).strip()
        except (OSError, EOFError) as error:  # TimeoutError is one
            raise LabError(f"{self._name}: no word within {timeout_s:g} s: {error}") from None

    def send(self, text: bytes) -> None:
        import paramiko

        try:
            self._channel.sendall(text)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise LabError(f"{self._name}: the SSH connection broke: {error}") from None

    def end(self) -> None:
        import paramiko

        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()
            self._channel.status_event.wait(ENDING_S)
            self._channel.close()


def _send(channel: paramiko.Channel, stdin: IO[bytes] | None) -> None:
    """Send everything and end the input. A command that ends before has its status to say why."""
    try:
        while stdin is not None and (chunk := stdin.read(_CHUNK)):
            channel.sendall(chunk)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        return


@contextmanager
def connected(node: Node, trusts: Trusts = nobody) -> Iterator[Remote]:
    """A login on a node. Raises :class:`LabError` where it cannot be reached or is not who it should be."""
    from labctl.transport.login import log_in, log_out

    connection = log_in(node, CONNECT_TIMEOUT_S, trusts)
    try:
        yield SshRemote(node, connection)
    finally:
        log_out(connection)
