"""An agent and a labctl of different versions: they talk as far as they know the words, or part without harm."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from labctl.errors import LabError, UnsupportedError
from labctl.lab.model import Node
from labctl.pki import LabAuthority
from labctl.transport.base import ClosingTransport
from labctl.transport.client import AgentClient
from labctl.transport.grpc import GrpcTransport
from labctl.transport.ssh import SshTransport
from node_agent import main, server
from node_agent.api import agent_pb2 as pb
from node_agent.api.methods import METHODS, SERVICE
from node_agent.local import LocalServer
from node_agent.version import CONTRACT
from tests.unit.agents import FakeAgent
from tests.unit.sshd import SshServer

Change = Callable[[pytest.MonkeyPatch], None]


def without_audit(patch: pytest.MonkeyPatch) -> None:
    """As an agent of this contract from before there was an audit."""
    patch.setattr(server, "METHODS", {name: one for name, one in METHODS.items() if name != "Audit"})


def another_contract(patch: pytest.MonkeyPatch) -> None:
    """As an agent of the next contract: its methods are below another name."""
    whole = grpc.method_handlers_generic_handler
    patch.setattr(grpc, "method_handlers_generic_handler", lambda name, handlers: whole(
        name.replace(f".v{CONTRACT}.", f".v{CONTRACT + 1}."), handlers))  # fmt: skip


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def authority(tmp_path: Path) -> LabAuthority:
    return LabAuthority.create(tmp_path / "pki", "demo")


@pytest.fixture
def client(
    request: pytest.FixtureRequest, agent: FakeAgent, authority: LabAuthority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentClient]:
    change: Change = request.param
    change(monkeypatch)
    with agent.serving(authority) as node, GrpcTransport(node, authority) as transport:
        yield AgentClient(transport)


def test_a_contract_is_the_name_of_its_package() -> None:
    assert SERVICE.full_name == f"groundfault.v{CONTRACT}.Agent"


@pytest.mark.parametrize("client", [without_audit], indirect=True)
def test_an_older_agent_does_what_it_knows_and_says_what_not(client: AgentClient, agent: FakeAgent) -> None:
    assert client.apply("inj-1", "slow_disk", {"delay_ms": 7}).state == "active"
    with pytest.raises(UnsupportedError, match="its agent does not know Audit of contract 1") as refused:
        client.audit()
    assert "labctl node install" in refused.value.hint


@pytest.mark.parametrize("client", [another_contract], indirect=True)
def test_an_agent_of_another_contract_is_asked_for_nothing(client: AgentClient, agent: FakeAgent) -> None:
    for ask in (client.facts, lambda: client.apply("inj-1", "slow_disk", {}), client.recover):
        with pytest.raises(UnsupportedError, match=r"does not know \w+ of contract 1"):
            ask()
    assert agent.injector.asked == []


def test_an_older_agent_over_ssh(tmp_path: Path) -> None:
    error = {"code": "not_found", "message": "there is no method 'Audit'", "field": "method", "allowed": "Facts"}
    line = json.dumps({"error": error}).encode() + b"\n"
    with SshServer(tmp_path, lambda argv, stdin: (1, line, b"")) as ssh, SshTransport(ssh.node()) as transport:
        with pytest.raises(UnsupportedError, match="there is no method 'Audit'") as refused:
            AgentClient(transport).audit()
    assert "labctl node install" in refused.value.hint


class Saying(ClosingTransport):
    """An agent that answers with this."""

    def __init__(self, reply: Message) -> None:
        self.node, self._reply = Node(name="w1", address="h"), reply

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        return self._reply

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        assert isinstance(self._reply, pb.Injection)
        yield self._reply

    def close(self) -> None:
        pass


def test_facts_tell_of_another_contract() -> None:
    reply = pb.FactsReply(node="w1", contract=CONTRACT + 1, agent_version="9.0")
    with pytest.raises(LabError, match=r"agent of w1 \(version 9\.0\) speaks contract 2, this labctl speaks 1"):
        AgentClient(Saying(reply)).facts()


def test_words_that_only_a_newer_agent_knows() -> None:
    unknown = pb.Injection.FromString(pb.Injection(id="a", node="w1").SerializeToString() + b"\x28\x63")
    assert unknown.state == 99
    for ask in (
        lambda: AgentClient(Saying(unknown)).apply("a", "f", {}),
        lambda: list(AgentClient(Saying(unknown)).watch("a")),
        lambda: AgentClient(Saying(pb.ListReply(injections=[unknown]))).list(),
    ):
        with pytest.raises(LabError, match="does not understand its agent's answer") as refused:
            ask()
        assert "node install w1" in refused.value.hint


def test_fields_that_only_a_newer_agent_knows_are_left_aside() -> None:
    whole = pb.FactsReply(node="w1", contract=CONTRACT, agent_version="9.0").SerializeToString() + b"\xfa\x7f\x01x"
    assert AgentClient(Saying(pb.FactsReply.FromString(whole))).facts().agent_version == "9.0"


def asked(path: Path, line: bytes) -> dict[str, dict[str, str]]:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(5)
        channel.connect(str(path))
        channel.sendall(line)
        found: dict[str, dict[str, str]] = json.loads(channel.makefile("rb").readline())
        return found


def test_a_labctl_of_another_contract_over_ssh_is_refused(agent: FakeAgent, tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    local = LocalServer(agent.service, path)
    local.start()
    try:
        error = asked(path, b'{"method":"Recover","contract":2,"request":{"all":true}}\n')["error"]
        assert error["code"] == "unsupported" and "speaks contract 1, not 2" in error["message"]
        assert agent.injector.asked == []
        assert "reply" in asked(path, b'{"method":"Facts","contract":1,"request":{}}\n')
    finally:
        agent.service.close()
        local.stop()


def test_a_contract_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.call("Facts", "w1", "/absent", 'x"') == main.USAGE
    assert "not a number of a contract" in capsys.readouterr().err


def test_labctl_tells_its_contract_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = SshTransport(Node(name="w1", address="h"))
    assert "--contract" not in transport.command("Facts")
    monkeypatch.setattr("labctl.transport.ssh.CONTRACT", 2)
    assert transport.command("Facts")[-2:] == ("--contract", "2")
