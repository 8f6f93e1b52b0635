"""gRPC over a real loopback connection: mutual TLS, what is refused and how it is told, errors, watching."""

from __future__ import annotations

import datetime as dt
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from labctl.errors import LabctlError, LabError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab.model import Node
from labctl.pki import LabAuthority, node_id
from labctl.transport.base import AgentFailedError, Cause, ConnectError, NoAnswerError
from labctl.transport.connect import AgentClient, connect
from labctl.transport.grpc import GrpcTransport
from node_agent import errors
from node_agent.api import agent_pb2 as pb
from node_agent.server import MAX_REQUESTS
from tests.unit.agents import FakeAgent, failing, view, with_client

DAY = dt.timedelta(days=1)
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LabAuthority:
    return LabAuthority.create(tmp_path_factory.mktemp("lab") / "tls", "demo")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LabAuthority:
    return LabAuthority.create(tmp_path_factory.mktemp("other") / "tls", "demo")


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def node(agent: FakeAgent, authority: LabAuthority) -> Iterator[Node]:
    with agent.serving(authority) as served:
        yield served


@pytest.fixture
def client(node: Node, authority: LabAuthority) -> Iterator[AgentClient]:
    with connect(node, authority) as transport:
        yield AgentClient(transport)


def refusal(node: Node, authority: LabAuthority, node_clock: float | None = None) -> ConnectError:
    transport = GrpcTransport(node, authority, lambda _: node_clock)
    with pytest.raises(ConnectError) as refused, transport:
        AgentClient(transport).facts(5)
    assert "\n" not in refused.value.message + refused.value.hint
    return refused.value


def test_every_method_answers(client: AgentClient, agent: FakeAgent) -> None:
    assert client.facts().node == "w1"
    assert client.probe().capabilities[0].name == "dm"
    assert client.apply("inj-1", "slow_disk", {"delay_ms": 7}, lease_s=60).parameters == {"delay_ms": 7}
    assert client.extend("inj-1", 30).id == "inj-1"
    assert [i.id for i in client.list().injections] == ["inj-1"]
    assert next(client.watch("inj-1")).state == "active"
    assert client.residue() == agent.injector.residue()
    assert client.set_clock(1.9e9).after_unix_s == pytest.approx(1.9e9)
    assert client.recover(stop="set").stopped is True
    assert client.recover(stop="clear").stopped is False


def test_a_client_without_certificate_is_refused(node: Node, authority: LabAuthority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.client_files()["ca.pem"])
    options = (("grpc.ssl_target_name_override", node_id("w1", "demo")),)
    with grpc.secure_channel(f"127.0.0.1:{node.agent_port}", credentials, options) as channel:
        ask = channel.unary_unary("/groundfault.v1.Agent/Facts", None, None)
        with pytest.raises(grpc.RpcError) as refused:
            ask(b"", timeout=5)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_without_tls_nothing_answers(node: Node) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{node.agent_port}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/groundfault.v1.Agent/Facts", None, None)(b"", timeout=5)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_client_of_another_lab_is_refused(
    node: Node, authority: LabAuthority, other: LabAuthority, tmp_path: Path
) -> None:
    theirs = other.client_files()
    mixed = with_client(authority, tmp_path / "mixed", theirs["client.pem"], theirs["client.key"])
    assert refusal(node, mixed).cause == "client_refused"


def test_an_expired_client_is_refused(node: Node, authority: LabAuthority, tmp_path: Path) -> None:
    old = with_client(authority, tmp_path / "old", *authority.issue_client(NOW - 9 * DAY, NOW - DAY))
    refused = refusal(node, old)
    assert refused.cause == "expired" and "our own certificate" in refused.message


def test_a_node_certificate_does_not_command_other_nodes(
    node: Node, authority: LabAuthority, tmp_path: Path
) -> None:
    files = authority.node_files("w2")
    thief = with_client(authority, tmp_path / "thief", files["node.pem"], files["node.key"])
    refused = refusal(node, thief)
    assert refused.cause == "client_refused" and "refuses our certificate" in refused.message


@pytest.mark.parametrize(
    ("days", "what"), [(-400, "not yet valid: node clock is 20"), (+9000, "expired: node clock is 20")]
)
def test_a_refusal_for_the_sake_of_the_nodes_clock_says_so(
    node: Node, authority: LabAuthority, tmp_path: Path, days: int, what: str
) -> None:
    files = authority.node_files("w2")
    thief = with_client(authority, tmp_path / "thief", files["node.pem"], files["node.key"])
    refused = refusal(node, thief, time.time() + days * 86400)
    assert refused.cause == "node_clock" and what in refused.message


@pytest.mark.parametrize(
    ("dates", "cause", "words"),
    [
        ((NOW - 9 * DAY, NOW - DAY), "expired", "certificate of w1 at .* expired on 20"),
        ((NOW + DAY, NOW + 9 * DAY), "not_yet_valid", "certificate of w1 at .* is not yet valid: it begins on 20"),
    ],
)
def test_dates_of_a_node_certificate(
    agent: FakeAgent, authority: LabAuthority, dates: tuple[dt.datetime, dt.datetime], cause: Cause, words: str
) -> None:
    with agent.serving(authority, authority.node_files("w1", *dates)) as node:
        refused = refusal(node, authority)
    assert refused.cause == cause
    assert re.search(words, refused.message)


def test_a_node_of_another_lab(node: Node, authority: LabAuthority, other: LabAuthority) -> None:
    refused = refusal(node, other)
    assert refused.cause == "other_ca"
    assert authority.lab_id in refused.message and other.lab_id in refused.message


def test_a_renamed_node(node: Node, authority: LabAuthority) -> None:
    refused = refusal(node.model_copy(update={"name": "w3"}), authority)
    assert refused.cause == "wrong_name"
    assert "w1.demo.groundfault" in refused.message and "not w3.demo.groundfault" in refused.message


@pytest.mark.parametrize(("name", "good"), [("w1", True), ("w3", False)])
def test_a_certificate_with_only_a_common_name(
    agent: FakeAgent, authority: LabAuthority, name: str, good: bool
) -> None:
    issued = authority._issue(node_id(name, "demo"), (), ExtendedKeyUsageOID.SERVER_AUTH, None, None)
    files = authority.node_files("w1") | {"node.pem": issued[0], "node.key": issued[1]}
    with agent.serving(authority, files) as node:
        if good:  # gRPC takes the common name where there are no others, and it is the node id
            with connect(node, authority) as transport:
                assert AgentClient(transport).facts().node == "w1"
        else:
            refused = refusal(node, authority)
            assert refused.cause == "wrong_name" and "is named w3.demo.groundfault" in refused.message


def test_nothing_listens(authority: LabAuthority) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    refused = refusal(Node(name="w1", address="127.0.0.1", agent_port=port), authority)
    assert refused.cause == "refused" and f"127.0.0.1:{port}" in refused.message


def test_an_address_that_is_none(authority: LabAuthority) -> None:
    refused = refusal(Node(name="w1", address="no.such.host.invalid"), authority)
    assert refused.cause == "unreachable"


class Stranger:
    """A server that accepts and then does one thing."""

    def __init__(self, answer: bytes | None) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.answer = answer
        self.held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.held.append(connection)
            if self.answer is not None:
                connection.sendall(self.answer)
                connection.close()

    def __enter__(self) -> Node:
        return Node(name="w1", address="127.0.0.1", agent_port=self.listening.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for connection in self.held:
            connection.close()


@pytest.mark.parametrize(
    ("answer", "cause"), [(b"", "closed"), (b"HTTP/1.0 400 Bad Request\r\n\r\n" * 9, "not_an_agent")]
)
def test_a_port_with_no_agent_behind_it(authority: LabAuthority, answer: bytes, cause: Cause) -> None:
    with Stranger(answer) as node:
        assert refusal(node, authority).cause == cause


def test_a_port_that_says_nothing(authority: LabAuthority) -> None:
    with Stranger(None) as node, GrpcTransport(node, authority) as transport:
        began = time.monotonic()
        with pytest.raises(ConnectError) as late:
            AgentClient(transport).facts(0.15)
    assert late.value.cause == "timeout"
    assert time.monotonic() - began < 2


def test_grpc_needs_certificates() -> None:
    with pytest.raises(UsageError, match="needs the lab's certificates"):
        connect(Node(name="w1", address="127.0.0.1"), None)


@pytest.mark.parametrize(
    ("raised", "becomes", "hint"),
    [
        (errors.Refusal, UsageError, "something else"),
        (errors.NotFoundError, UsageError, "something else"),
        (errors.ConflictError, UsageError, "something else"),
        (errors.UnsupportedError, UnsupportedError, "something else"),
        (errors.StoppedError, AgentFailedError, "something else"),
        (errors.StorageError, AgentFailedError, "something else"),
        (errors.ApplyError, AgentFailedError, "something else"),
        (errors.StuckError, NodeDirtyError, "something else"),
        (errors.AgentError, AgentFailedError, "something else"),
    ],
)
def test_errors_of_the_agent(
    client: AgentClient,
    agent: FakeAgent,
    raised: type[errors.AgentError],
    becomes: type[LabctlError],
    hint: str,
) -> None:
    agent.injector.fail["apply"] = failing(raised)
    with pytest.raises(becomes) as failed:
        client.apply("inj-1", "slow_disk", {})
    assert (failed.value.message, failed.value.hint) == ("w1: what went wrong", hint)
    if isinstance(failed.value, AgentFailedError):
        assert failed.value.code == raised.code and isinstance(failed.value, LabError)


def test_a_bug_in_the_agent_is_a_broken_lab(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.fail["extend"] = ZeroDivisionError("by zero")
    with pytest.raises(AgentFailedError, match="a bug in the agent: ZeroDivisionError"):
        client.extend("inj-1", 5)
    assert client.facts().node == "w1"


def test_long_and_foreign_texts_pass(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.fail["apply"] = errors.Refusal("ß" * 5000, field="ü", allowed="é" * 5000)
    with pytest.raises(UsageError) as failed:
        client.apply("inj-1", "slow_disk", {})
    assert failed.value.message.startswith("w1: ßß") and failed.value.hint.startswith("éé")


def test_requests_are_bounded(client: AgentClient) -> None:
    with pytest.raises(AgentFailedError, match="larger than max"):
        client.apply("inj-1", "slow_disk", {"text": "x" * (2 << 20)})


def test_watch_until_it_ends(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    seen = []
    for one in client.watch("inj-1", 0.2):
        seen.append((one.state, one.evidence))
        agent.injector.recover(None, "expired")
    assert seen == [(state, view("inj-1").evidence) for state in ("active", "recovered")], "hits and all"


def test_leaving_a_watch_frees_its_thread(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    for _ in range(MAX_REQUESTS + 8):
        watching = client.watch("inj-1", 60)
        next(watching)
        watching.close()
        wait_until(lambda: agent.service._watchers._value == 8)
    assert client.facts().node == "w1"


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_errors_of_watch(client: AgentClient) -> None:
    with pytest.raises(UsageError, match="no injection inj-9"):
        list(client.watch("inj-9"))


def test_twenty_at_once(client: AgentClient, agent: FakeAgent) -> None:
    def one(number: int) -> str:
        return client.apply(f"inj-{number}", "slow_disk", {"number": number}).id

    with ThreadPoolExecutor(20) as threads:
        assert sorted(threads.map(one, range(20))) == sorted(f"inj-{n}" for n in range(20))
    assert len(agent.injector.live) == 20


def test_recovery_gets_through_while_others_are_stuck(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.hold = threading.Event()
    agent.injector.live["inj-w"] = view("inj-w")
    with ThreadPoolExecutor(20) as threads:
        stuck = [threads.submit(client.apply, f"inj-{n}", "slow_disk", {}) for n in range(16)]
        watching = [client.watch("inj-w", 60) for _ in range(8)]
        for one in watching:
            next(one)
        wait_until(lambda: len(agent.injector.live) == 17)
        assert len(client.recover(everything=True, timeout_s=5).injections) == 17
        agent.injector.hold.set()
        assert all(future.result() for future in stuck)
        for one in watching:
            one.close()


def test_more_requests_than_are_let_in_are_turned_away(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.hold = threading.Event()
    with ThreadPoolExecutor(2 * MAX_REQUESTS) as threads:
        asked = [threads.submit(client.apply, f"inj-{n}", "slow_disk", {}) for n in range(MAX_REQUESTS)]
        wait_until(lambda: len(agent.injector.live) == MAX_REQUESTS)
        with pytest.raises(LabError):
            client.facts(0.3)
        agent.injector.hold.set()
        assert all(future.result() for future in asked)
    assert client.facts().node == "w1"


def test_a_late_answer(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.hold = threading.Event()
    request = pb.ApplyRequest(id="inj-1", fault="slow_disk")
    with pytest.raises(NoAnswerError, match=r"w1 did not answer Apply within 0\.2 s"):
        client._transport.call("Apply", request, 0.2)
    agent.injector.hold.set()


def test_an_apply_that_was_late_but_succeeded_is_found(client: AgentClient, agent: FakeAgent) -> None:
    agent.injector.hold = threading.Event()
    found = client.apply("inj-1", "slow_disk", {"delay_ms": 1}, timeout_s=0.3)
    agent.injector.hold.set()
    assert found.state == "active" and found.parameters == {"delay_ms": 1}
    assert ("list", True, ("inj-1",)) in agent.injector.asked


def test_the_agent_restarts_between_two_calls(agent: FakeAgent, authority: LabAuthority) -> None:
    with agent.serving(authority) as node:
        transport = GrpcTransport(node, authority)
        client = AgentClient(transport)
        assert client.facts().node == "w1"
    with pytest.raises(LabError):
        client.facts(2)
    from node_agent.server import TlsFiles, start_server

    files = authority.node_files("w1")
    tls = TlsFiles(files["ca.pem"], files["node.pem"], files["node.key"])
    server, _ = start_server(agent.service, tls, f"127.0.0.1:{node.agent_port}")
    assert client.facts(5).node == "w1"
    transport.close()
    server.stop(0).wait(5)


def test_a_second_agent_cannot_share_the_port(node: Node, agent: FakeAgent, authority: LabAuthority) -> None:
    from node_agent.server import TlsFiles, start_server

    files = authority.node_files("w1")
    with pytest.raises(OSError, match="cannot listen"):
        start_server(
            agent.service,
            TlsFiles(files["ca.pem"], files["node.pem"], files["node.key"]),
            f"127.0.0.1:{node.agent_port}",
        )
