"""Waiting for a node: its clock, its identity, slow starts, and clocks so far off that TLS fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any

import pytest
from google.protobuf.message import Message

from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.pki import LabAuthority
from labctl.transport.base import ClosingTransport, ConnectError, NoAnswerError
from labctl.transport.grpc import GrpcTransport
from labctl.transport.ready import make_ready
from node_agent.api import agent_pb2 as pb
from node_agent.caller import Caller
from node_agent.server import TlsFiles, start_server
from tests.unit.agents import FakeAgent


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LabAuthority:
    return LabAuthority.create(tmp_path_factory.mktemp("lab") / "tls", "demo")


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent(clock=time.time)


class Direct(ClosingTransport):
    """Straight to a service, after failing as often as it is told to."""

    def __init__(self, agent: FakeAgent, failures: list[Exception]) -> None:
        self.agent, self.failures, self.opened, self.closed = agent, failures, 0, 0
        self.asked: list[str] = []
        self.node = Node(name="w1", address="x")

    def open(self, *_: object) -> Direct:
        self.opened += 1
        return self

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        assert timeout_s > 0
        if self.failures:
            raise self.failures.pop(0)
        self.asked.append(method)
        return self.agent.service.call(method, request, Caller("test"))

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


def no_ssh(node: Node) -> Any:
    raise AssertionError("SSH is not needed")


@pytest.mark.parametrize("offset_s", [0.0, 3600.0, -400 * 86400.0])
def test_the_clock_is_set(agent: FakeAgent, authority: LabAuthority, offset_s: float) -> None:
    agent.machine.offset_s = offset_s
    with agent.serving(authority) as node:
        make_ready(authority, 10, by_ssh=no_ssh)(node)
    assert abs(agent.machine.offset_s) < 0.05
    assert agent.injector.asked == [("capabilities", False)]


def test_all_is_well_with_one_connection_and_few_calls(agent: FakeAgent, authority: LabAuthority) -> None:
    direct = Direct(agent, [])
    make_ready(authority, 10, by_grpc=direct.open, by_ssh=no_ssh)(direct.node)
    assert (direct.opened, direct.closed) == (1, 1)
    assert direct.asked == ["Facts", "SetClock", "Facts", "Probe"]


def test_no_connection_is_left_open(agent: FakeAgent, authority: LabAuthority) -> None:
    opened: list[GrpcTransport] = []

    def by_grpc(node: Node, authority: LabAuthority) -> GrpcTransport:
        opened.append(GrpcTransport(node, authority))
        return opened[-1]

    with agent.serving(authority) as node:
        make_ready(authority, 10, by_grpc=by_grpc, by_ssh=no_ssh)(node)
    assert [t._open for t in opened] == [None] and opened[0]._retired == []


def test_an_agent_that_comes_late(agent: FakeAgent, authority: LabAuthority) -> None:
    with agent.serving(authority) as node:
        port = node.agent_port
    late = FakeAgent(clock=time.time)
    files = authority.node_files("w1")
    servers: list[Any] = []

    def start() -> None:
        tls = TlsFiles(files["ca.pem"], files["node.pem"], files["node.key"])
        servers.append(start_server(late.service, tls, f"127.0.0.1:{port}")[0])

    timer = threading.Timer(0.5, start)
    timer.start()
    began = time.monotonic()
    make_ready(authority, 10, by_ssh=no_ssh)(Node(name="w1", address="127.0.0.1", agent_port=port))
    assert 0.4 < time.monotonic() - began < 2
    servers[0].stop(0).wait(5)


def test_a_slow_agent_gets_more_time_at_each_attempt(agent: FakeAgent, authority: LabAuthority) -> None:
    direct = Direct(agent, [NoAnswerError("late"), ConnectError("timeout", "late"), ConnectError("closed", "x")])
    make_ready(authority, 10, by_grpc=direct.open, by_ssh=no_ssh)(direct.node)
    assert (direct.opened, direct.closed) == (4, 4)


def test_a_clock_far_off_is_set_over_ssh_first(agent: FakeAgent, authority: LabAuthority) -> None:
    agent.machine.offset_s = -400 * 86400.0
    grpc = Direct(agent, [ConnectError("client_refused", "refuses our certificate")])
    ssh = Direct(agent, [])
    make_ready(authority, 10, by_grpc=grpc.open, by_ssh=ssh.open)(grpc.node)
    assert ssh.asked == ["SetClock"] and ssh.closed == 1
    assert abs(agent.machine.offset_s) < 0.05


def test_a_refusal_that_no_clock_mends(agent: FakeAgent, authority: LabAuthority) -> None:
    refusals: list[Exception] = [ConnectError("client_refused", "refuses our certificate")] * 2
    grpc, ssh = Direct(agent, refusals), Direct(agent, [])
    with pytest.raises(ConnectError, match="refuses our certificate"):
        make_ready(authority, 10, by_grpc=grpc.open, by_ssh=ssh.open)(grpc.node)
    assert ssh.asked == ["SetClock"]


def test_a_clock_far_off_and_no_ssh(agent: FakeAgent, authority: LabAuthority) -> None:
    grpc = Direct(agent, [ConnectError("client_refused", "refuses our certificate")])
    ssh = Direct(agent, [ConnectError("refused", "no SSH server")])
    with pytest.raises(ConnectError, match=r"refuses our certificate, and .* over SSH: no SSH server"):
        make_ready(authority, 10, by_grpc=grpc.open, by_ssh=ssh.open)(grpc.node)


@pytest.mark.parametrize("cause", ["other_ca", "expired", "not_yet_valid", "wrong_name"])
def test_what_waiting_does_not_mend_is_told_at_once(agent: FakeAgent, authority: LabAuthority, cause: Any) -> None:
    direct = Direct(agent, [ConnectError(cause, "no")])
    with pytest.raises(ConnectError, match="no"):
        make_ready(authority, 10, by_grpc=direct.open, by_ssh=no_ssh)(direct.node)
    assert direct.opened == 1


def test_waiting_ends(agent: FakeAgent, authority: LabAuthority) -> None:
    direct = Direct(agent, [ConnectError("closed", "w1 hangs up", "not yet")] * 99)
    with pytest.raises(LabError, match=r"w1 was not ready within 0\.3 s: w1 hangs up") as late:
        make_ready(authority, 0.3, by_grpc=direct.open, by_ssh=no_ssh)(direct.node)
    assert late.value.hint == "not yet"


def test_a_clock_that_does_not_stay_set(agent: FakeAgent, authority: LabAuthority) -> None:
    agent.machine.set_time = lambda unix_s: setattr(agent.machine, "offset_s", 7.0)  # type: ignore[method-assign]
    with agent.serving(authority) as node:
        with pytest.raises(LabError, match=r"the clock of w1 is \+7\.00 s off"):
            make_ready(authority, 0.4, by_ssh=no_ssh)(node)


def test_another_node_answers(authority: LabAuthority) -> None:
    impostor = FakeAgent(clock=time.time, name="w2")
    with impostor.serving(authority) as node:
        with pytest.raises(LabError, match="what answers as w1 is node w2"):
            make_ready(authority, 10, by_ssh=no_ssh)(node)
    assert impostor.machine.set_to == []


def test_the_probes_are_waited_for(agent: FakeAgent, authority: LabAuthority) -> None:
    began = time.monotonic()
    slow = agent.injector.capabilities

    def probing(again: bool = False) -> Any:
        time.sleep(max(0.0, began + 0.3 - time.monotonic()))
        return slow(again)

    agent.injector.capabilities = probing  # type: ignore[method-assign]
    with agent.serving(authority) as node:
        make_ready(authority, 10, by_ssh=no_ssh)(node)
    assert time.monotonic() - began >= 0.3
