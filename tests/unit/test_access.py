"""Who is let in: revoked certificates, new ones while an agent serves, and the register of operators."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from labctl import operators, pki, succession
from labctl.errors import LabError, UsageError
from labctl.lab.files import write_atomic
from labctl.lab.model import Node
from labctl.pki import LabAuthority, common_name, fingerprint
from labctl.transport.base import ConnectError
from labctl.transport.client import AgentClient
from labctl.transport.diagnose import shown_certificate
from labctl.transport.grpc import GrpcTransport
from node_agent.audit import AuditLog
from node_agent.errors import RevokedError
from node_agent.revoked import FILE, Revoked
from node_agent.revoked import fingerprint as agents_fingerprint
from node_agent.server import Renewed, TlsFiles, start_server
from node_agent.service import Service
from tests.unit.agents import FakeAgent, with_client

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> LabAuthority:
    return LabAuthority.create(tmp_path / "pki", "rack", operator="alice")


@pytest.fixture
def tls(authority: LabAuthority, tmp_path: Path) -> Path:
    """A node's directory for certificates."""
    directory = tmp_path / "tls"
    directory.mkdir()
    put(directory, authority.node_files("w1"))
    return directory


def put(directory: Path, files: dict[str, bytes]) -> None:
    """As an install does: each file at once, one after another."""
    for name, content in files.items():
        (directory / ".new").write_bytes(content)
        (directory / ".new").rename(directory / name)


@contextmanager
def serving(tls: Path) -> Iterator[tuple[Node, AuditLog]]:
    agent = FakeAgent()
    audit = AuditLog(tls.parent / "audit", "boot-1", lambda: 42.0)
    service = Service(agent.injector, agent.machine, "w1", audit=audit)  # type: ignore[arg-type]
    files = TlsFiles.read(tls)
    assert files
    server, port = start_server(service, files, "127.0.0.1:0", tls)
    try:
        yield Node(name="w1", address="127.0.0.1", agent_port=port), audit
    finally:
        service.close()
        server.stop(0).wait(5)


def operator(authority: LabAuthority, name: str, directory: Path) -> LabAuthority:
    """Another machine, where this operator works."""
    operators.take(directory / name, operators.add(authority, name, 90, NOW), authority.lab)
    return LabAuthority.load(directory / name)


def test_two_operators_and_one_is_let_in_no_more(authority: LabAuthority, tls: Path, tmp_path: Path) -> None:
    bob = operator(authority, "bob", tmp_path)
    with serving(tls) as (node, audit), GrpcTransport(node, authority) as ours, GrpcTransport(node, bob) as his:
        AgentClient(ours).recover(everything=True)
        AgentClient(his).recover(everything=True)
        AgentClient(ours).apply("inj-1", "slow_disk", {})
        watching = AgentClient(his).watch("inj-1", 0.2)
        assert next(watching).id == "inj-1"
        register = operators.revoke(authority, "bob", NOW)
        put(tls, {FILE: register.revoked_list()})
        for ask in (AgentClient(his).facts, lambda: AgentClient(his).recover(everything=True)):
            with pytest.raises(ConnectError, match=f"our certificate: this.*revoked on {NOW:%Y-%m-%d}") as no:
                ask()
            assert no.value.cause == "client_refused" and "operator add" in no.value.hint
        for watched in (watching, AgentClient(his).watch("inj-1")):
            with pytest.raises(ConnectError, match="revoked"):
                list(watched)
        AgentClient(ours).recover(everything=True)
        found = [(one.who, one.method, one.result) for one in AgentClient(ours).audit().entries]
    assert found == [("alice", "Recover", "ok"), ("bob", "Recover", "ok"), ("alice", "Apply", "ok"),
                     ("bob", "", "revoked"), ("alice", "Recover", "ok")]  # fmt: skip
    assert [entry.where.startswith("ipv4:127.0.0.1:") for entry in audit.read()[0]] == [True] * 5


def test_both_sides_know_a_certificate_by_the_same_number(authority: LabAuthority) -> None:
    own = authority.client_certificate()
    assert agents_fingerprint(authority.client_files()["client.pem"]) == fingerprint(own)


def test_a_list_that_cannot_be_read_lets_nobody_in(tmp_path: Path, authority: LabAuthority) -> None:
    pem = authority.client_files()["client.pem"]
    file = tmp_path / "revoked"
    revoked = Revoked(file)
    revoked.check(pem)
    file.write_text("nonsense\n")
    with pytest.raises(RevokedError, match="cannot be read: line 1 is not understood"):
        revoked.check(pem)
    file.write_text("0" * 64 + " carol 2026-01-01\n")
    revoked.check(pem)
    file.write_text(f"{'0' * 64} carol 2026-01-01\n{agents_fingerprint(pem)} alice 2026-01-02\n")
    with pytest.raises(RevokedError, match="revoked on 2026-01-02"):
        revoked.check(pem)
    file.unlink()
    revoked.check(pem)


def test_new_certificates_are_taken_while_the_agent_serves(
    authority: LabAuthority, tls: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shown(node: Node) -> str:
        found = shown_certificate(node, authority, 5)
        assert found
        return fingerprint(found)

    with serving(tls) as (node, _), GrpcTransport(node, authority) as before:
        AgentClient(before).facts()
        first = shown(node)
        fresh = authority.node_files("w1")
        with caplog.at_level(logging.WARNING):
            put(tls, {"node.pem": fresh["node.pem"]})  # and not yet its key
            assert shown(node) == first
        assert "are not taken yet" in caplog.text
        put(tls, {"node.key": fresh["node.key"]})
        new = x509.load_pem_x509_certificate(fresh["node.pem"])
        assert shown(node) == fingerprint(new) != first
        AgentClient(before).facts()  # who is connected stays so
        with GrpcTransport(node, authority) as after:
            AgentClient(after).facts()


def test_certificates_that_are_as_they_were_are_not_read_again(tls: Path) -> None:
    renewed = Renewed(tls)
    assert renewed() is None
    os.utime(tls / "node.pem", ns=(1, 1))
    assert renewed() is not None
    assert renewed() is None
    (tls / "node.pem").unlink()
    assert renewed() is None


def test_an_operator_s_file_is_for_one_lab(authority: LabAuthority, tmp_path: Path) -> None:
    content = operators.add(authority, "bob", 90, NOW)
    with pytest.raises(UsageError, match="is for lab rack, not other"):
        operators.take(tmp_path / "new", content, "other")
    with pytest.raises(UsageError, match="not what labctl operator add writes"):
        operators.take(tmp_path / "new", content[:500], "rack")
    stranger = LabAuthority.create(tmp_path / "stranger", "rack")
    mixed = authority.ca_file.read_bytes() + b"".join(stranger.issue_client())
    with pytest.raises(UsageError, match="not of its authority"):
        operators.take(tmp_path / "new", mixed, "rack")
    assert not (tmp_path / "new").exists()
    operators.take(tmp_path / "new", content, "rack")
    guest = LabAuthority.load(tmp_path / "new")
    assert common_name(guest.client_certificate()) == "bob" and not guest.may_issue
    with pytest.raises(LabError, match="cannot write"):
        operators.take(tmp_path / "new", content, "rack")
    for act in (lambda: operators.add(guest, "eve", 9, NOW), lambda: operators.revoke(guest, "bob", NOW)):
        with pytest.raises(LabError, match="this machine may command lab rack, and not"):
            act()


def test_the_register_of_operators(authority: LabAuthority) -> None:
    operators.add(authority, "bob", 90, NOW)
    with pytest.raises(UsageError, match="bob has a certificate that is valid"):
        operators.add(authority, "bob", 90, NOW)
    operators.add(authority, "carol", 10, NOW)
    states = {one.name: one.state(NOW) for one in operators.read(authority).operators}
    assert states == {"alice": "valid", "bob": "valid", "carol": "ends soon"}
    later = {one.name: one.state(NOW + 100 * DAY) for one in operators.read(authority).operators}
    assert later == {"alice": "valid", "bob": "expired", "carol": "expired"}
    operators.revoke(authority, "bob", NOW)
    operators.add(authority, "bob", 5, NOW)
    names = [(one.name, one.state(NOW)) for one in operators.read(authority).operators]
    assert names == [("alice", "valid"), ("bob", "revoked"), ("carol", "ends soon"), ("bob", "ends soon")]
    for name, words in (("eve", "there is no operator"), ("alice", "is who works here")):
        with pytest.raises(UsageError, match=words):
            operators.revoke(authority, name, NOW)
    with pytest.raises(UsageError, match="NAME: 'Bob Smith'"):
        operators.add(authority, "Bob Smith", 5, NOW)


def test_which_nodes_have_the_newest_list(authority: LabAuthority) -> None:
    nodes = ("w1", "w2")
    assert operators.read(authority).lacking(nodes) == ()
    operators.add(authority, "bob", 90, NOW)
    register = operators.revoke(authority, "bob", NOW)
    assert register.lacking(nodes) == nodes
    operators.write(authority, register.having(["w1"]))
    assert operators.read(authority).lacking(nodes) == ("w2",)


def test_another_certificate_for_this_machine(authority: LabAuthority, tls: Path, tmp_path: Path) -> None:
    files = authority.client_files()
    before = with_client(authority, tmp_path / "before", files["client.pem"], files["client.key"])
    register = operators.renew(authority, 365, NOW)
    assert [(one.name, one.state(NOW)) for one in register.operators] == [("alice", "revoked"), ("alice", "valid")]
    assert common_name(authority.client_certificate()) == "alice"
    with serving(tls) as (node, _), GrpcTransport(node, authority) as new, GrpcTransport(node, before) as old:
        AgentClient(old).facts()
        put(tls, {FILE: register.revoked_list()})
        AgentClient(new).facts()
        with pytest.raises(ConnectError, match="revoked"):
            AgentClient(old).facts()


def test_a_damaged_register_is_one_line(authority: LabAuthority) -> None:
    (authority.directory / operators.FILE).write_text("{")
    with pytest.raises(LabError, match=r"operators\.json cannot be read"):
        operators.read(authority)


def test_another_authority_while_an_agent_serves(authority: LabAuthority, tls: Path, tmp_path: Path) -> None:
    bob = operator(authority, "bob", tmp_path)
    coming = succession.next_authority(authority)
    assert succession.next_authority(authority).lab_id == coming.lab_id != authority.lab_id
    with serving(tls) as (node, _), GrpcTransport(node, authority) as open_before:
        AgentClient(open_before).facts()
        put(tls, {"ca.pem": succession.both(authority, coming)})
        for who in (authority, bob):
            with GrpcTransport(node, who) as transport:
                AgentClient(transport).facts()
        turned = succession.turn(authority, coming)
        assert not succession.is_under_way(authority.directory)
        with GrpcTransport(node, turned) as transport:  # its certificate is still the old one's
            AgentClient(transport).facts()
        put(tls, turned.node_files("w1"))
        succession.settle(turned)
        after = LabAuthority.load(authority.directory)
        assert after.ca_file.read_bytes() == after.own_pem() and after.lab_id == turned.lab_id
        with GrpcTransport(node, after) as transport:
            AgentClient(transport).facts()
        AgentClient(open_before).facts()
        with GrpcTransport(node, bob) as transport, pytest.raises(ConnectError, match="belongs to another CA"):
            AgentClient(transport).facts()
        again = operator(after, "bob", tmp_path / "again")
        with GrpcTransport(node, again) as transport:
            AgentClient(transport).facts()
    assert [one.name for one in operators.read(after).operators] == ["alice", "bob"]


@pytest.mark.parametrize("lost_at", range(1, 6))
def test_a_turn_that_is_cut_leaves_what_agents_take(
    authority: LabAuthority, tls: Path, monkeypatch: pytest.MonkeyPatch, lost_at: int
) -> None:
    coming = succession.next_authority(authority)
    put(tls, {"ca.pem": succession.both(authority, coming)})
    written: list[Path] = []

    def cut(path: Path, content: bytes, mode: int = 0o600) -> None:
        if len(written) == lost_at:
            raise KeyboardInterrupt
        written.append(path)
        write_atomic(path, content, mode)

    for module in (succession, pki, operators):
        monkeypatch.setattr(module, "write_atomic", cut)
    with pytest.raises(KeyboardInterrupt):
        succession.turn(authority, coming)
    monkeypatch.undo()
    found = LabAuthority.load(authority.directory)
    with serving(tls) as (node, _):
        if written[-1].name != "client.key":  # else a key without its certificate: the same command mends it
            with GrpcTransport(node, found) as transport:
                AgentClient(transport).facts()
        turned = succession.turn(found, succession.next_authority(found))
        with GrpcTransport(node, turned) as transport:
            AgentClient(transport).facts()
        assert turned.lab_id == coming.lab_id and not succession.is_under_way(authority.directory)
