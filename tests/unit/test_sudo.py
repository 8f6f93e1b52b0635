"""Being root by sudo: a password reaches sudo, once, and nobody else. The shell is a real one, sudo a test's."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from labctl.errors import UnsupportedError, UsageError
from labctl.lab.model import Node
from labctl.lab.remote import Output, Running
from labctl.lab.root import Root
from labctl.transport import sudo
from labctl.transport.base import ConnectError, NoAnswerError
from labctl.transport.client import AgentClient
from labctl.transport.ssh import SshTransport
from tests.unit.sshd import SshServer

FAKE_SUDO = """#!/bin/sh
# As sudo reads a password: the first line of its input, and only where it asks.
printf '%s ' "$@" >> "$SUDO_LOG"; echo >> "$SUDO_LOG"
while [ "$1" != -- ]; do
  case $1 in -n) never=1 ;; -p) shift ;; esac
  shift
done
shift
if [ "$SUDO_ASKS" = 1 ]; then
  [ "$never" = 1 ] && { echo 'sudo: a password is required' >&2; exit 1; }
  read -r said
  [ "$said" = secret ] || { echo 'Sorry, try again.' >&2; echo 'sudo: no password was provided' >&2; exit 1; }
fi
exec "$@"
"""


class LocalHost:
    """This machine as a node: runs what it is told, with a sudo of the test's."""

    def __init__(self, directory: Path, asks: bool) -> None:
        self.node = Node(name="w1", address="h", ssh_user="ops")
        self._path, self.log = directory / "bin", directory / "sudo.log"
        self._path.mkdir()
        self.script("sudo", FAKE_SUDO)
        self.script("id", "#!/bin/sh\necho 1000\n")
        self.env = {**os.environ, "SUDO_LOG": str(self.log), "SUDO_ASKS": "1" if asks else "0"}
        self.env["PATH"] = f"{self._path}:{os.environ['PATH']}"

    def script(self, name: str, text: str) -> None:
        (self._path / name).write_text(text)
        (self._path / name).chmod(0o755)

    def run(self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = 9.0) -> Output:
        content = b""
        while stdin is not None and (piece := stdin.read(7)):
            content += piece
        done = subprocess.run(list(argv), input=content, capture_output=True, env=self.env, timeout=timeout_s)
        return Output(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, argv: Sequence[str], first: bytes = b"") -> Running:
        raise NotImplementedError


DATA = b"line one\nsecret\n\x00\xff binary\n" * 400


@pytest.mark.parametrize("asks", [True, False])
def test_a_password_reaches_sudo_and_nobody_else(tmp_path: Path, asks: bool) -> None:
    """Also where sudo does not ask for this command: then the line is taken away before the command."""
    host = LocalHost(tmp_path, asks=True)
    root = Root(host, lambda node: "secret")
    host.env["SUDO_ASKS"] = "1" if asks else "0"
    done = root.ask("sh", "-c", 'cat > "$0"; echo done', str(tmp_path / "got"), stdin=io.BytesIO(DATA))
    assert (done.status, done.stdout) == (0, "done\n")
    assert (tmp_path / "got").read_bytes() == DATA
    assert "secret" not in host.log.read_text()
    assert root.ask("sh", "-c", "exit 3").status == 3


def test_nothing_is_asked_where_sudo_does_not_ask(tmp_path: Path) -> None:
    root = Root(LocalHost(tmp_path, asks=False), lambda node: pytest.fail("asked"))
    assert root.argv("true") == ("sudo", "-n", "--", "true")
    assert root.run("cat", stdin=io.BytesIO(b"data")) == "data"


def test_a_wrong_password_is_tried_once(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, asks=True)
    with pytest.raises(UnsupportedError, match="sudo refuses ops: sudo: no password was provided"):
        Root(host, lambda node: "wrong")
    assert len(host.log.read_text().splitlines()) == 2  # without, and with it


def test_no_password_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="may not use sudo without a password") as refused:
        Root(LocalHost(tmp_path, asks=True))
    assert "sudo_password_env" in refused.value.hint and "NOPASSWD" in refused.value.hint
    assert "has to be root's" in refused.value.message


def test_a_node_without_sudo(tmp_path: Path) -> None:
    host = LocalHost(tmp_path, asks=True)
    host.script("sudo", "#!/bin/sh\necho 'sh: sudo: not found' >&2\nexit 127\n")
    with pytest.raises(UnsupportedError, match="is not root, and there is no sudo; the agent has to be root's"):
        Root(host)


def test_the_inventory_refers_to_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost(tmp_path, asks=True)
    host.node = host.node.model_copy(update={"sudo_password_env": "OPS_SUDO"})
    monkeypatch.delenv("OPS_SUDO", raising=False)
    with pytest.raises(UsageError, match="sudo_password_env: OPS_SUDO is not set"):
        Root(host)
    monkeypatch.setenv("OPS_SUDO", "secret")
    assert Root(host).run("echo", "hi") == "hi\n"
    file = tmp_path / "password"
    file.write_text("secret\n")
    host.node = Node(name="w1", address="h", ssh_user="ops", sudo_password_file=file)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="others can read"):
        Root(host)
    file.chmod(0o400)
    assert Root(host).run("echo", "hi") == "hi\n"


def test_a_request_to_the_agent_comes_after_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(name="w1", address="h", ssh_user="ops", sudo_password_env="OPS_SUDO")
    monkeypatch.setenv("OPS_SUDO", "secret")
    transport = SshTransport(node, ("cat",))
    command = transport.command("Facts")
    assert command[:4] == ("sudo", "-k", "-S", "-p") and "secret" not in " ".join(command)
    assert transport._lead() == b"secret\n" + sudo.MARK.encode() + b"\n"


def test_a_wrong_password_is_tried_once_over_the_transport_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: list[bytes] = []

    def answer(argv: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        inputs.append(stdin)
        if argv[-1] == "true":
            good = stdin == b"secret\n"
            return (0, b"", b"") if good else (1, b"", b"Sorry, try again.\nsudo: 1 incorrect password attempt\n")
        return 0, b'{"reply":{"node":"w1","contract":1}}\n', b""

    with SshServer(tmp_path, answer) as server:
        server.users = ["ops"]
        node = server.node(ssh_user="ops", sudo_password_env="OPS_SUDO")
        monkeypatch.setenv("OPS_SUDO", "wrong")
        with (
            SshTransport(node) as transport,
            pytest.raises(ConnectError, match=r"sudo refuses ops: .*1 incorrect"),
        ):
            AgentClient(transport).facts()
        assert inputs == [b"wrong\n"]
        monkeypatch.setenv("OPS_SUDO", "secret")
        with SshTransport(node) as transport:
            assert [AgentClient(transport).facts().node for _ in range(2)] == ["w1", "w1"]
    assert [one.startswith(b"secret\n" + sudo.MARK.encode()) for one in inputs[1:]] == [False, True, True]


@pytest.mark.parametrize("lost", [False, True])
def test_sudo_that_says_nothing_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """As where it asks a directory service that is away; or the connection is lost meanwhile."""
    over = threading.Event()

    def answer(argv: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        if lost:
            server.hang_up()
        assert over.wait(30)
        return 0, b"", b""

    monkeypatch.setenv("OPS_SUDO", "secret")
    said = "SSH was lost at sudo" if lost else "sudo did not take the password within"
    with SshServer(tmp_path, answer) as server:
        server.users = ["ops"]
        node = server.node(ssh_user="ops", sudo_password_env="OPS_SUDO")
        with SshTransport(node) as transport, pytest.raises(NoAnswerError, match=said):
            AgentClient(transport).facts(0.5)
        over.set()
