"""What labctl asks people at a terminal: is the host key right, and the password for sudo; each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import paramiko
import pytest

from labctl.cli.session import Session
from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.lab.remote import Remote
from labctl.transport.host_keys import Trusts, nobody
from node_agent.serve import _CannotServe, _refuse_others_than_root
from tests.unit.cli_world import World

OPS = Node(name="w1", address="h", ssh_user="ops")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody who says yes, and knows the password; what they were asked."""
    asked: list[str] = []

    def confirm(text: str, **how: object) -> bool:
        asked.append(text)
        return True

    def prompt(text: str, hide_input: bool, err: bool) -> str:
        assert hide_input and err
        asked.append(text)
        return "secret"

    monkeypatch.setattr(click, "confirm", confirm)
    monkeypatch.setattr(click, "prompt", prompt)
    monkeypatch.setattr(Session, "can_ask", property(lambda session: not session.json))
    return asked


def test_a_password_is_asked_for_once_a_user(world: World, terminal: list[str]) -> None:
    session = Session(world)
    names = ("w1", "w2")
    assert {session.password(OPS.model_copy(update={"name": name})) for name in names} == {"secret"}
    assert session.password(OPS.model_copy(update={"ssh_user": "admin"})) == "secret"
    assert terminal == ["password for sudo of ops on w1", "password for sudo of admin on w1"]
    assert "secret" not in repr(session)


def test_nobody_is_asked_without_a_terminal(world: World) -> None:
    session = Session(world)
    assert session.password(OPS) is None
    assert session.trusts("w1", "ssh-ed25519", "SHA256:x") is False


def test_the_first_contact_is_before_the_lab_is_used(
    world: World, terminal: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    met: list[str] = []

    @contextmanager
    def remote(node: Node, trusts: Trusts = nobody) -> Iterator[Remote]:
        met.append(f"{node.name} {trusts(node.name, 'ssh-ed25519', 'SHA256:x')}")
        raise LabError("no login")
        yield

    monkeypatch.setattr(world, "remote", remote)
    file = tmp_path / "hosts.toml"
    table = '[nodes.{0}]\naddress = "127.0.0.1"\nport = 1{1}\nknown_hosts = "{0}"\n'
    named = 'fingerprint = "SHA256:' + 43 * "A" + '"\n'
    file.write_text(table.format("new", 1) + table.format("named", 2) + named + table.format("known", 3))
    key = paramiko.ECDSAKey.generate()
    (tmp_path / "known").write_text(f"[127.0.0.1]:13 {key.get_name()} {key.get_base64()}\n")
    world.run("--lab", "rack", "up", "--provider", "ssh", "--inventory", str(file))
    assert met == ["new True"]
    assert len(terminal) == 1


def test_an_agent_that_is_not_root_s_says_why() -> None:
    _refuse_others_than_root(0)
    with pytest.raises(_CannotServe, match=r"has to run as root and runs as user 1000: .* belongs to the kernel"):
        _refuse_others_than_root(1000)
