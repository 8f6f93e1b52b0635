"""Logins on real hosts: host keys at the first contact and later, jump hosts."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import paramiko
import pytest

from labctl.errors import LabError
from labctl.lab.model import Login, Node
from labctl.lab.remote import connected
from labctl.transport.base import ConnectError
from labctl.transport.host_keys import Trusts, is_known, nobody, record
from labctl.transport.login import log_in, log_out
from tests.unit.sshd import SshServer


def answer(argv: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
    return 0, stdin or b"hello", b""


def fails(node: Node, trusts: Trusts = nobody) -> ConnectError:
    with pytest.raises(ConnectError) as refused:
        log_out(log_in(node, 5, trusts))
    assert "\n" not in refused.value.message + refused.value.hint
    return refused.value


def greets(node: Node) -> str:
    with connected(node) as remote:
        return remote.run(("hello",)).stdout


def test_a_fingerprint_of_the_inventory_makes_a_key_known(tmp_path: Path) -> None:
    with SshServer(tmp_path, answer) as server:
        node = server.node(known_hosts=tmp_path / "new" / "hosts", fingerprints=(server.host_key.fingerprint,))
        assert greets(node) == "hello"
        assert is_known(node.login)
        assert greets(server.node(known_hosts=tmp_path / "new" / "hosts")) == "hello"


def test_a_key_that_the_inventory_does_not_name(tmp_path: Path) -> None:
    other = paramiko.ECDSAKey.generate()
    with SshServer(tmp_path, answer) as server:
        for file in ("new", "known_hosts"):  # unknown, and known to be another one
            refused = fails(server.node(known_hosts=tmp_path / file, fingerprints=(other.fingerprint,)))
            assert refused.cause == "host_key"
            assert server.host_key.fingerprint in refused.message and other.fingerprint in refused.message
    assert not (tmp_path / "new").exists() and server.commands == []


def test_the_first_contact_is_somebody_s_to_judge(tmp_path: Path) -> None:
    asked: list[tuple[str, str, str]] = []

    def saying(word: bool) -> Trusts:
        def trusts(where: str, kind: str, fingerprint: str) -> bool:
            asked.append((where, kind, fingerprint))
            return word

        return trusts

    with SshServer(tmp_path, answer) as server:
        node = server.node(known_hosts=tmp_path / "new")
        refused = fails(node, saying(False))
        assert refused.cause == "host_key" and server.host_key.fingerprint in refused.message
        assert f'fingerprint = "{server.host_key.fingerprint}"' in refused.hint
        assert not (tmp_path / "new").exists()
        log_out(log_in(node, 5, saying(True)))
        log_out(log_in(node, 5, saying(False)))
        assert greets(node) == "hello"
    assert len(asked) == 2 and asked[0][1:] == (server.host_key.get_name(), server.host_key.fingerprint)


def test_a_changed_key_is_told_with_both_and_with_the_remedy(tmp_path: Path) -> None:
    other = paramiko.ECDSAKey.generate()
    with SshServer(tmp_path, answer) as server:
        name = f"[127.0.0.1]:{server.port}"
        file = tmp_path / "stale"
        file.write_text(f"{name} {other.get_name()} {other.get_base64()}\n")
        refused = fails(server.node(known_hosts=file), lambda *about: True)
        assert server.host_key.fingerprint in refused.message and other.fingerprint in refused.message
        command = refused.hint.partition("anew: ")[2]
        assert command == f"ssh-keygen -R '{name}' -f {file}"
        subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        log_out(log_in(server.node(known_hosts=file), 5, lambda *about: True))


def test_a_key_is_added_after_whatever_the_file_ends_with(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a ssh-ed25519 AAAA")
    key = paramiko.ECDSAKey.generate()
    record(Login(address="h", known_hosts=file), key)
    assert file.read_text() == f"a ssh-ed25519 AAAA\nh {key.get_name()} {key.get_base64()}\n"


Behind = tuple[SshServer, SshServer, Node]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    """A jump host, a node behind it, and how one gets there."""
    (tmp_path / "jump").mkdir()
    (tmp_path / "node").mkdir()
    with SshServer(tmp_path / "jump", answer) as jump, SshServer(tmp_path / "node", answer) as last:
        jump.users = ["jumper"]
        yield jump, last, last.node(jumps=(jump.node(ssh_user="jumper").login,))


def jumping(node: Node, **changes: object) -> Node:
    return node.model_copy(update={"jumps": (node.jumps[0].model_copy(update=changes),)})


def test_a_node_behind_a_jump_host(behind: Behind) -> None:
    jump, last, node = behind
    assert greets(node) == "hello"
    assert (jump.commands, last.commands) == ([], ["hello"])
    assert jump.led_to == [("127.0.0.1", last.port)]


def test_both_logins_end(behind: Behind) -> None:
    connection = log_in(behind[2], 5)
    way = connection.gateway
    log_out(connection)
    assert not connection.is_connected and not way.is_connected


def test_a_jump_host_is_who_it_should_be(behind: Behind) -> None:
    jump, _, node = behind
    refused = fails(jumping(node, fingerprints=(paramiko.ECDSAKey.generate().fingerprint,)))
    assert refused.cause == "host_key" and "jump host 127.0.0.1" in refused.message
    assert jump.led_to == []
    refused = fails(jumping(node, user="root"))
    assert refused.cause == "login"
    assert f"w1: jump host 127.0.0.1:{jump.port} does not let root in" in refused.message


def test_a_node_that_its_jump_host_does_not_reach(behind: Behind) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    refused = fails(behind[2].model_copy(update={"ssh_port": port}))
    assert refused.cause in ("closed", "unreachable") and f"w1 at 127.0.0.1:{port}" in refused.message


def test_a_command_that_goes_on_until_its_input_ends(tmp_path: Path) -> None:
    with SshServer(tmp_path, answer) as server, connected(server.node()) as remote:
        running = remote.start(("hold",), b"one\n")
        running.end()
        assert (running.line(), running.line()) == ("one", "")
        server.hang_up()
        running.end()
        with pytest.raises(LabError, match="broke during"):
            remote.start(("hold",))
