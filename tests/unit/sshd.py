"""An SSH server for tests: one user, one key, runs the command it is given."""

from __future__ import annotations

import shlex
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import paramiko
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from labctl.lab.model import Node


class _Login(paramiko.ServerInterface):
    def __init__(self, server: SshServer) -> None:
        self._server = server
        self.wanted: dict[int, tuple[str, int]] = {}

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        self._server.led_to.append(destination)
        self.wanted[chanid] = destination
        return OPEN_SUCCEEDED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = username in self._server.users and key == self._server.user_key
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._server.commands.append(command.decode())
        threading.Thread(target=self._server.execute, args=(channel, command.decode()), daemon=True).start()
        return True


def _lead_on(transport: paramiko.Transport, login: _Login) -> None:
    """Be a jump host: join what was asked for with the channel."""
    kept = []  # paramiko itself knows a channel weakly: one that nobody keeps is gone
    while transport.is_active():
        channel = transport.accept(1.0)
        if channel is None:
            continue
        kept.append(channel)
        if channel.chanid not in login.wanted:
            continue
        try:
            there = socket.create_connection(login.wanted[channel.chanid], 5)
        except OSError:
            channel.close()
            continue
        for one, other in ((channel, there), (there, channel)):
            threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: Any, other: Any) -> None:
    with suppress(OSError, EOFError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError, EOFError):
        other.close()


class SshServer:
    """Listens on loopback. `run` takes the place of a command: (argv, stdin) → (status, stdout, stderr)."""

    def __init__(
        self, directory: Path, run: Callable[[list[str], bytes], tuple[int, bytes, bytes]] | None = None
    ) -> None:
        self.user_key = paramiko.ECDSAKey.generate()
        self.host_key = paramiko.ECDSAKey.generate()
        self.commands: list[str] = []
        self.users = ["root"]
        self.led_to: list[tuple[str, int]] = []
        """Where others went by way of this server."""
        self._run = run
        self._transports: list[paramiko.Transport] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.key_file, self.known_hosts = directory / "user.key", directory / "known_hosts"
        self.user_key.write_private_key_file(str(self.key_file))
        self.known_hosts.write_text(
            f"[127.0.0.1]:{self.port} {self.host_key.get_name()} {self.host_key.get_base64()}\n"
        )

    def node(self, **changes: object) -> Node:
        fields: dict[str, object] = {
            "name": "w1", "address": "127.0.0.1", "ssh_port": self.port, "ssh_key": self.key_file,
            "known_hosts": self.known_hosts,
        }  # fmt: skip
        return Node.model_validate(fields | changes)

    def execute(self, channel: paramiko.Channel, command: str) -> None:
        if self._run:
            status, out, err = self._run(shlex.split(command), channel.makefile("rb").read())
            channel.sendall(out)
            channel.sendall_stderr(err)
        else:
            with subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as child:
                assert child.stdin and child.stdout and child.stderr
                child.stdin.write(channel.makefile("rb").read())
                child.stdin.close()
                for line in child.stdout:
                    channel.sendall(line)
                channel.sendall_stderr(child.stderr.read())
                status = child.wait()
        with suppress(OSError, EOFError, paramiko.SSHException):  # the client may have left
            if status >= 0:
                channel.send_exit_status(status)
            channel.close()

    def hang_up(self) -> None:
        """End every login."""
        while self._transports:
            self._transports.pop().close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.host_key)
            self._transports.append(transport)
            login = _Login(self)
            try:
                transport.start_server(server=login)
            except (paramiko.SSHException, EOFError):
                continue
            threading.Thread(target=_lead_on, args=(transport, login), daemon=True).start()

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()
