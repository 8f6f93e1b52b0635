"""SSH: runs `node-agent call` on the node. For hosts whose firewall lets nothing else through, and for a node
whose clock is so far off that no certificate is valid on it."""

from __future__ import annotations

import json
import shlex
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.message import Message

from labctl.errors import LabctlError
from labctl.lab.model import Node
from labctl.transport import sudo
from labctl.transport.base import (
    AgentFailedError,
    ClosingTransport,
    ConnectError,
    NoAnswerError,
    answered_error,
)
from labctl.transport.login import log_in, log_out
from node_agent.api import agent_pb2 as pb
from node_agent.api.methods import Method, find_method
from node_agent.version import CONTRACT

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel

AGENT = "/opt/groundfault/bin/node-agent"
CONNECT_TIMEOUT_S = 15.0
WATCH_LINE_TIMEOUT_S = 90.0
MAX_ANSWER_BYTES = 8 << 20
NOT_RUNNING, NOT_FOUND = 70, 127


class SshTransport(ClosingTransport):
    """A login on one node, made when first used and kept until :meth:`close`.

    The host key must be known beforehand, and the agent is told which node we mean, so that a request never
    reaches another machine. A user other than root needs sudo for the agent's program: with the password that the
    inventory refers to, or without one.
    """

    def __init__(self, node: Node, agent: tuple[str, ...] = (AGENT,)) -> None:
        self.node, self._agent = node, agent
        self._login: Connection | None = None

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        found = find_method(method)
        deadline = time.monotonic() + timeout_s
        channel = self._run(found, request, deadline)
        try:
            lines = _lines(channel, deadline)
            line = next(lines, b"")
        except TimeoutError:
            raise NoAnswerError(
                f"{self.node.name} did not answer {method} within {timeout_s:g} s", "is the node overloaded?"
            ) from None
        finally:
            status, complaint = _ended(channel)
        if not line:
            raise no_answer(self.node, method, status, complaint)
        return parsed(self.node, found, line)

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        found = find_method("Watch")
        channel = self._run(found, request, time.monotonic() + CONNECT_TIMEOUT_S)
        got = 0
        try:
            for line in _lines(channel, None):
                got += 1
                message = parsed(self.node, found, line)
                assert isinstance(message, pb.Injection)
                yield message
        except TimeoutError:
            raise NoAnswerError(f"{self.node.name} has stopped answering Watch") from None
        finally:
            status, complaint = _ended(channel)
        if not got:
            raise no_answer(self.node, "Watch", status, complaint)

    def close(self) -> None:
        if self._login is not None:
            log_out(self._login)
            self._login = None

    def command(self, method: str) -> tuple[str, ...]:
        """What is run on the node for a method of the contract."""
        # Agents from before contracts were told over SSH do not know the option, and speak the first.
        contract = () if CONTRACT == 1 else ("--contract", str(CONTRACT))
        plain = (*self._agent, "call", method, "--node", self.node.name, *contract)
        if self.node.ssh_user == "root":
            return plain
        return sudo.with_password(plain) if self._has_password else (*sudo.WITHOUT, *plain)

    @property
    def _has_password(self) -> bool:
        return bool(self.node.sudo_password_env or self.node.sudo_password_file)

    def _lead(self) -> bytes:
        """What goes before the request. Raises :class:`labctl.errors.UsageError`."""
        password = self._password()
        return sudo.lead(password) if password else b""

    def _password(self) -> str | None:
        """For sudo; None where none is needed. Raises :class:`labctl.errors.UsageError`."""
        return sudo.referred(self.node) if self.node.ssh_user != "root" else None

    def _run(self, method: Method, request: Message, deadline: float) -> Channel:
        from paramiko import SSHException

        command = self.command(method.name)
        lead = self._lead()
        body = json_format.MessageToJson(request, preserving_proto_field_name=True, indent=None)
        for again in (True, False):
            login = self._connected(deadline)
            try:
                channel: Channel = login.transport.open_session(timeout=max(0.1, deadline - time.monotonic()))
                channel.exec_command(shlex.join(command))
                channel.sendall(lead + body.encode())
                channel.shutdown_write()
                return channel
            except (SSHException, OSError, EOFError) as error:  # EOFError: paramiko could not write to the socket
                self.close()  # a kept login that has died since: once more with a new one
                lost = str(error) or type(error).__name__
            if not again:
                break
        raise NoAnswerError(f"{self.node.name}: SSH was lost during {method.name}: {lost}")

    def _connected(self, deadline: float) -> Connection:
        if self._login is None:
            left = max(0.1, min(CONNECT_TIMEOUT_S, deadline - time.monotonic()))
            login = log_in(self.node, left)
            try:
                self._check_password(login, deadline)
            except BaseException:
                log_out(login)
                raise
            self._login = login
        return self._login

    def _check_password(self, login: Connection, deadline: float) -> None:
        """Once a login: a wrong password before a request would be tried with each line of the request."""
        from paramiko import SSHException

        password = self._password()
        if password is None:
            return
        left = max(0.1, deadline - time.monotonic())
        try:
            channel: Channel = login.transport.open_session(timeout=left)
            channel.settimeout(left)
            channel.exec_command(shlex.join(sudo.checking()))
            channel.sendall(sudo.first_line(password))
            channel.shutdown_write()
            channel.makefile("rb").read()
            status, complaint = _ended(channel)
        except TimeoutError:
            raise NoAnswerError(f"{self.node.name}: sudo did not take the password within {left:.0f} s") from None
        except (SSHException, OSError, EOFError) as error:
            raise NoAnswerError(
                f"{self.node.name}: SSH was lost at sudo: {error or type(error).__name__}"
            ) from None
        if status < 0:
            raise NoAnswerError(f"{self.node.name}: SSH was lost at sudo: {complaint}")
        if status != 0:
            raise sudo_refused(self.node, complaint)


def sudo_refused(node: Node, complaint: str) -> ConnectError:
    """The password was tried, and sudo would not."""
    return ConnectError(
        "login",
        f"{node.name}: sudo refuses {node.ssh_user}: {complaint}",
        "is the password right, and the user in sudoers?",
    )


def parsed(node: Node, method: Method, line: bytes) -> Message:
    """The reply in a line of `node-agent call`. Raises what the agent answered instead."""
    try:
        data: Any = json.loads(line)
        if "error" in data:
            raise answered_error(node.name, json_format.ParseDict(data["error"], pb.Error()))
        return json_format.ParseDict(data["reply"], method.reply(), ignore_unknown_fields=True)
    except (ValueError, KeyError, TypeError, json_format.ParseError):
        text = line[:80].decode(errors="replace").strip()
        raise AgentFailedError(
            "internal",
            f"{node.name}: {method.name} was answered by {text!r}",
            "is another program talking?",
        ) from None


def no_answer(node: Node, method: str, status: int, complaint: str) -> LabctlError:
    """What it means that `node-agent call` ended so without an answer."""
    name = node.name
    if status == NOT_RUNNING:
        return ConnectError(
            "not_running", f"{name}: {complaint}", "on the node: systemctl status groundfault-agent"
        )
    if status == NOT_FOUND:
        return ConnectError(
            "not_running", f"{name} has no agent: {complaint}", "labctl node install puts one there"
        )
    if complaint.startswith("sudo:"):
        hint = f"{node.ssh_user} needs to run {AGENT} with sudo: without a password, or with "
        hint += "sudo_password_env or sudo_password_file in the inventory"
        return ConnectError("login", f"{name}: {complaint}", hint)
    if status < 0:
        return NoAnswerError(f"{name}: SSH was lost during {method}", "its agent may have done it")
    return AgentFailedError("internal", f"{name}: {method} ended with status {status}: {complaint}")


def _lines(channel: Channel, deadline: float | None) -> Iterator[bytes]:
    """Lines of standard output as they come. Raises TimeoutError."""
    data = b""
    while True:
        rest = WATCH_LINE_TIMEOUT_S if deadline is None else deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        channel.settimeout(rest)
        try:
            piece = channel.recv(65536)
        except socket.timeout:  # noqa: UP041 -- paramiko's own before Python 3.10, the same class since
            raise TimeoutError from None
        data += piece
        *lines, data = data.split(b"\n")
        yield from (line for line in lines if line.strip())
        if not piece or len(data) > MAX_ANSWER_BYTES:
            return


def _ended(channel: Channel) -> tuple[int, str]:
    """Exit status (-1: none came) and the last line of standard error; closes the channel."""
    complaint = b""
    channel.settimeout(2.0)
    try:
        if channel.eof_received:
            channel.status_event.wait(2.0)
        while channel.recv_stderr_ready():
            complaint += channel.recv_stderr(65536)
    finally:
        with suppress(OSError, EOFError):  # the login may be gone, and the channel with it
            channel.close()
    status = channel.exit_status if channel.status_event.is_set() else -1
    lines = complaint.decode(errors="replace").strip().splitlines()
    return status, lines[-1] if lines else "no message"
