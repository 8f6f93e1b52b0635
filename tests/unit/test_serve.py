"""The life of the agent's process: recovery before readiness, its log, its end."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from labctl.errors import LabctlError
from labctl.lab.model import Node
from labctl.pki import LabAuthority, node_id
from labctl.transport.connect import AgentClient
from labctl.transport.grpc import GrpcTransport
from node_agent.server import TlsFiles
from tests.unit.agents import with_client

ROOT = Path(__file__).parents[2]
DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LabAuthority:
    return LabAuthority.create(tmp_path_factory.mktemp("lab") / "tls", "demo")


def wait_until(condition: Callable[[], object], what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


@dataclass
class Place:
    """Where an agent lives: its configuration, and what it writes."""

    path: Path
    port: int = 0

    def install(self, files: dict[str, bytes], name: str = "w1\n") -> None:
        (self.path / "config" / "tls").mkdir(parents=True)
        (self.path / "config" / "node").write_text(name)
        for file, content in files.items():
            (self.path / "config" / "tls" / file).write_bytes(content)
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self.port = unused.getsockname()[1]

    @property
    def log(self) -> str:
        return (self.path / "log").read_text()

    @property
    def diary(self) -> list[str]:
        return (self.path / "state" / "diary").read_text().splitlines()

    @property
    def node(self) -> Node:
        return Node(name="w1", address="127.0.0.1", agent_port=self.port)

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        options = [f"{name}={self.path / name}" for name in ("config", "state", "run")]
        # labctl in this process may have told gRPC's core to be silent.
        inherited = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.unit.served", *options, f"listen=127.0.0.1:{self.port}"],
            cwd=ROOT, stderr=(self.path / "log").open("ab"), env=inherited | environment,
        )  # fmt: skip

    @contextmanager
    def running(self, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start(**environment)
        try:
            wait_until(lambda: "serves node w1" in self.log, lambda: self.log)
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def place(tmp_path: Path, authority: LabAuthority) -> Place:
    found = Place(tmp_path)
    found.install(authority.node_files("w1"))
    return found


def ask(place: Place, authority: LabAuthority) -> str:
    with GrpcTransport(place.node, authority) as transport:
        return AgentClient(transport).facts(5).node


def test_a_life(place: Place, authority: LabAuthority, tmp_path: Path) -> None:
    with place.running() as killed:
        killed.kill()
        killed.wait()
    (place.path / "log").write_text("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(place.path / "notify"))
        said = _heard(systemd)
        with place.running(NOTIFY_SOCKET=str(place.path / "notify"), WATCHDOG_USEC="400000") as process:
            wait_until(lambda: bool(said))
            assert said[0] == b"READY=1"
            assert place.diary.count("start") == 2  # recovery comes before readiness
            _refused_clients(place, authority, tmp_path)
            _second_agent(place)
            assert ask(place, authority) == "w1"
            wait_until(lambda: {"capabilities False", "tick"} <= set(place.diary))
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        wait_until(lambda: said[-1] == b"STOPPING=1")
        assert said[1] == b"WATCHDOG=1"
    assert {"recover None agent stopped", "end probing"} <= set(place.diary)
    assert "a bug in the lease of an injection" in place.log and "ZeroDivisionError" in place.log
    assert place.log.count("Facts from labctl at ipv4:127.0.0.1") == 1
    assert "lacks dm: no module" in place.log
    assert not (place.path / "run" / "agent.sock").exists()


def _heard(systemd: socket.socket) -> list[bytes]:
    """What is said to systemd, read as it comes: the queue of such a socket is short, and a full one blocks."""
    said: list[bytes] = []

    def listen() -> None:
        while not said or said[-1] != b"STOPPING=1":
            said.append(systemd.recv(99))

    threading.Thread(target=listen, daemon=True).start()
    return said


def _refused_clients(place: Place, authority: LabAuthority, tmp_path: Path) -> None:
    """Each is turned away, and leaves a line that says why."""
    other = LabAuthority.create(tmp_path / "other", "demo").client_files()
    thief = authority.node_files("w2")
    shown: dict[str, tuple[bytes, bytes] | None] = {
        "PEER_DID_NOT_RETURN_A_CERTIFICATE": None,
        "unable to get local issuer certificate": (other["client.pem"], other["client.key"]),
        "certificate has expired": authority.issue_client(NOW - 9 * DAY, NOW - DAY),
        "certificate is not yet valid": authority.issue_client(NOW + DAY, NOW + 9 * DAY),
        "unsupported certificate purpose": (thief["node.pem"], thief["node.key"]),
    }
    for number, (words, pair) in enumerate(shown.items()):
        theirs = None if pair is None else with_client(authority, tmp_path / str(number), *pair)
        wait_until(partial(_refused, place, authority, theirs, words), lambda: place.log)


def _refused(place: Place, authority: LabAuthority, theirs: LabAuthority | None, words: str) -> bool:
    """Whether the agent has said why. On a busy machine a client may give up before it was turned away: again."""
    if theirs is None:
        _without_certificate(place, authority)
    else:
        with pytest.raises(LabctlError):
            ask(place, theirs)
    return words in place.log


def _second_agent(place: Place) -> None:
    assert place.start().wait(10) == 70
    assert "another agent is running" in place.log
    assert place.diary.count("start") == 2


def _without_certificate(place: Place, authority: LabAuthority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.client_files()["ca.pem"])
    options = (("grpc.ssl_target_name_override", node_id("w1", "demo")),)
    with grpc.secure_channel(f"127.0.0.1:{place.port}", credentials, options) as channel:
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/groundfault.v1.Agent/Facts", None, None)(b"", timeout=5)


def test_without_certificates_only_ssh_reaches_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.install({})
    with place.running():
        assert "only SSH reaches this agent" in place.log
        done = subprocess.run(
            [sys.executable, "-m", "node_agent.main", "call", "Facts", "--socket", f"{tmp_path}/run/agent.sock"],
            cwd=ROOT, capture_output=True, text=True, input="",
        )  # fmt: skip
        assert done.returncode == 0 and '"node":"w1"' in done.stdout
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", place.port)).close()


@pytest.mark.parametrize("name", ["Not A Name", "", "w1\nw2", "../w1", "absent"])
def test_a_node_without_a_proper_name_is_one_line_and_70(tmp_path: Path, name: str) -> None:
    if name != "absent":
        (tmp_path / "node").write_text(name)
    command = [
        sys.executable,
        "-m",
        "node_agent.main",
        "serve",
        "--config",
        str(tmp_path),
        "--state",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 70 and done.stderr.count("\n") == 1
    assert "name of a node" in done.stderr or "name cannot be read" in done.stderr


def test_certificates_are_there_altogether_or_not_at_all(tmp_path: Path, authority: LabAuthority) -> None:
    files = authority.node_files("w1")
    assert TlsFiles.read(tmp_path) is None
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert TlsFiles.read(tmp_path) == TlsFiles(files["ca.pem"], files["node.pem"], files["node.key"])
    (tmp_path / "node.key").write_bytes(authority.node_files("w1")["node.key"])
    with pytest.raises(ValueError, match="cannot be used"):
        TlsFiles.read(tmp_path)
    (tmp_path / "node.key").unlink()
    with pytest.raises(FileNotFoundError, match=r"node\.key"):
        TlsFiles.read(tmp_path)


def test_a_port_that_is_taken(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)):
        assert place.start().wait(10) == 70
    assert f"cannot listen on 127.0.0.1:{place.port}" in place.log
    assert not (place.path / "run" / "agent.sock").exists()
