"""`labctl node adopt`, `renew`, `files`, and `labctl operator` over nodes that are directories."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from cryptography import x509

from labctl import operators
from labctl.lab import footprint as at
from labctl.lab.model import Node
from labctl.lab.remote import Output
from labctl.pki import LabAuthority
from labctl.transport.host_keys import nobody
from tests.unit.cli_world import World
from tests.unit.test_node_install import Rig, ToyNode

NOW = dt.datetime.now(dt.UTC)


class Provisioned(ToyNode):
    """A node that answers what is asked of one that somebody else provisioned."""

    def __init__(self, root: Path, node: Node) -> None:
        super().__init__(root, node)
        self.states = {"is-enabled": "enabled", "is-active": "active"}
        self.owner = "root"

    def _python3(self, words: list[str], stdin: object) -> Output:
        for key, path in (("name", at.NODE_FILE), ("authority", f"{at.TLS}/ca.pem")):
            file = self.path(path)
            self.found.setdefault(key, file.read_text().strip() if file.exists() else "")
        return super()._python3(words, stdin)

    def _systemctl(self, words: list[str], stdin: object) -> Output:  # type: ignore[override]
        self.units.append(" ".join(words))
        return Output(0, self.states.get(words[0], "") + "\n", "")

    def _node_agent(self, words: list[str], stdin: object) -> Output:
        return Output(70, "", "the agent does not answer")

    def _cmp(self, words: list[str], stdin: object) -> Output:
        one, other = (self.path(name).read_bytes() for name in words[1:])
        return Output(0 if one == other else 1, "", "")

    def _cat(self, words: list[str], stdin: object) -> Output:
        file = self.path(words[0])
        return Output(0, file.read_text(), "") if file.exists() else Output(1, "", "no such file")

    def _stat(self, words: list[str], stdin: IO[bytes]) -> Output:
        there = [name for name in words[3:] if self.path(name).exists()]
        lines = [f"{self.path(name).stat().st_mode & 0o777:o} {self.owner} {name}" for name in there]
        return Output(0, "\n".join(lines) + "\n", "")


@pytest.fixture
def authority(world: World) -> LabAuthority:
    return LabAuthority.create(world.pki_dir("default"), "default", operator="alice")


def provision(world: World, authority: LabAuthority, name: str = "w1") -> Provisioned:
    """By a playbook: the program, its unit, name, certificates."""
    rig = Rig(world.directory / name)
    node = Provisioned(world.directory / name / "node", Node(name=name, address="h"))
    rig.node = node
    rig.node.node = Node(name=name, address="h")
    rig.install()
    for file, content in authority.node_files(name).items():
        node.path(f"{at.TLS}/{file}").write_bytes(content)
    node.ran.clear()
    node.found.clear()
    node.found["clock_unix_s"] = time.time()
    world.logins[name] = node
    return node


def test_a_node_that_another_tool_provisioned(world: World, authority: LabAuthority) -> None:
    node = provision(world, authority)
    before = node.files()
    done = world.run("node", "adopt", "w1")
    assert done.code == 0, done.err
    assert "w1 is taken in: agent" in done.out
    assert node.files() == {**before, "etc/groundfault/tls/revoked": ""}
    assert world.run("node", "adopt", "w1").code == 0


Spoil = Callable[[Provisioned, Path], object]


def text(path: str, content: str) -> Spoil:
    return lambda node, scratch: node.path(path).write_text(content)


def other_lab(node: Provisioned, scratch: Path) -> None:
    for file, content in LabAuthority.create(scratch, "default").node_files("w1").items():
        node.path(f"{at.TLS}/{file}").write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (text(at.NODE_FILE, "db9\n"), "/etc/groundfault/node says db9, not w1"),
        (lambda node, scratch: node.states.update({"is-enabled": "disabled"}), "is disabled, not enabled"),
        (lambda node, scratch: node.states.update({"is-active": "failed"}), "is failed, not active"),
        (text(at.UNIT_FILE, "other"), "is not the one of the program there"),
    ],
)
def test_what_is_wrong_with_the_program_is_told(
    world: World, authority: LabAuthority, tmp_path: Path, spoil: Spoil, words: str
) -> None:
    node = provision(world, authority)
    spoil(node, tmp_path / "other")
    before = node.files()
    done = world.run("node", "adopt", "w1", "--renew")
    assert done.code == 64 and words in done.err and "labctl node install w1" in done.err
    assert node.files() == before


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (other_lab, "ca.pem is not of lab default"),
        (text(f"{at.TLS}/node.pem", "x"), "node.pem is no certificate"),
        (lambda node, scratch: node.path(f"{at.TLS}/node.key").chmod(0o644), "mode 644: others may read it"),
        (lambda node, scratch: setattr(node, "owner", "ops"), "is ops's with mode"),
        (
            lambda node, scratch: node.path(f"{at.TLS}/node.key").unlink(),
            "there is no /etc/groundfault/tls/node.key",
        ),
    ],
)
def test_certificates_that_are_wrong_are_told_and_can_be_made_anew(
    world: World, authority: LabAuthority, tmp_path: Path, spoil: Spoil, words: str
) -> None:
    node = provision(world, authority)
    spoil(node, tmp_path / "other")
    before = node.files()
    done = world.run("node", "adopt", "w1")
    assert done.code == 64 and words in done.err and "labctl node adopt w1 --renew" in done.err
    assert node.files() == before
    done = world.run("node", "adopt", "w1", "--renew")
    assert done.code == 0 and "with new certificates" in done.out
    node.found.pop("authority")
    node.owner = "root"
    assert world.run("node", "adopt", "w1").code == 0


def test_dates_names_and_clocks_of_certificates(world: World, authority: LabAuthority) -> None:
    node = provision(world, authority)
    node.path(f"{at.TLS}/node.pem").write_bytes(authority.node_files("w2")["node.pem"])
    assert "names w2.default.groundfault" in world.run("node", "adopt", "w1").err
    old = authority.node_files("w1", NOW - dt.timedelta(days=9), NOW - dt.timedelta(days=1))
    node.path(f"{at.TLS}/node.pem").write_bytes(old["node.pem"])
    assert "node.pem expired on" in world.run("node", "adopt", "w1").err
    node.path(f"{at.TLS}/node.pem").write_bytes(authority.node_files("w1")["node.pem"])
    node.found["clock_unix_s"] = time.time() - 365 * 86400
    assert "365 days behind the one here" in world.run("node", "adopt", "w1").err


def test_a_node_without_an_agent_is_not_taken(world: World, authority: LabAuthority) -> None:
    world.logins["w1"] = Provisioned(world.directory / "bare", Node(name="w1", address="h"))
    done = world.run("node", "adopt", "w1")
    assert done.code == 64 and "w1 has no agent" in done.err and "labctl node install w1" in done.err


def test_new_certificates_for_nodes(world: World, authority: LabAuthority) -> None:
    node = provision(world, authority)
    before = node.path(f"{at.TLS}/node.pem").read_bytes()
    done = world.run("node", "renew", "w1", "w2")
    assert done.code == 70 and "w1 has new certificates" in done.out and "w2 has no SSH" in done.err
    assert node.path(f"{at.TLS}/node.pem").read_bytes() != before
    assert [unit for unit in node.units if unit.startswith("restart")] == [f"restart {at.UNIT}"], "of the install"


def test_what_a_playbook_needs(world: World, authority: LabAuthority, tmp_path: Path) -> None:
    assert world.run("node", "files", "w1", "--out", str(tmp_path / "w1")).code == 0
    assert {path.name for path in (tmp_path / "w1").iterdir()} == {"ca.pem", "node.pem", "node.key", "revoked"}
    assert (tmp_path / "w1").stat().st_mode & 0o777 == 0o700
    assert world.run("node", "files", "w1", "--out", str(tmp_path / "w1")).code == 70


def test_operators_on_the_command_line(world: World, authority: LabAuthority, tmp_path: Path) -> None:
    node = provision(world, authority)
    world.lab.count = 2
    out = tmp_path / "bob.pem"
    assert world.run("operator", "add", "bob", "--out", str(out), "--days", "30").code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert world.run("operator", "add", "eve", "--out", str(out)).code == 64
    assert "eve" not in [one.name for one in operators.read(authority).operators]

    done = world.run("operator", "revoke", "bob")
    assert done.code == 70 and "bob is let in no more; on w1; NOT on w2: labctl operator push" in done.out
    assert node.path(f"{at.TLS}/{at.REVOKED}").read_text().split()[1] == "bob"
    listed = world.run("operator", "list").out
    assert "not yet on w2" in listed and "(here)" in listed
    provision(world, authority, "w2")
    assert world.run("operator", "push").code == 0
    assert "not yet on" not in world.run("operator", "list").out
    data = world.run("operator", "list", "--json").data
    assert [(one["name"], one["state"]) for one in data["operators"]] == [("alice", "valid"), ("bob", "revoked")]

    assert world.run("operator", "renew").code == 0
    assert len(node.path(f"{at.TLS}/{at.REVOKED}").read_text().splitlines()) == 2


def test_a_snapshot_is_told_again_who_was_let_in_no_more(
    world: World, authority: LabAuthority, tmp_path: Path
) -> None:
    world.lab.count = 1
    node = provision(world, authority)
    world.run("operator", "add", "bob", "--out", str(tmp_path / "bob.pem"))
    assert world.run("operator", "revoke", "bob").code == 0
    node.path(f"{at.TLS}/{at.REVOKED}").unlink()  # as the snapshot does
    assert world.run("reset").code == 0
    assert "bob" in node.path(f"{at.TLS}/{at.REVOKED}").read_text()


def test_an_operator_works_elsewhere(
    world: World, authority: LabAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bob.pem"
    world.run("operator", "add", "bob", "--out", str(out))
    node = provision(world, authority)
    put = node.path(f"{at.TLS}/{at.REVOKED}")
    put.write_text("0" * 64 + " eve 2026-01-01\n")
    monkeypatch.setattr(world, "directory", tmp_path / "elsewhere")
    assert world.run("operator", "use", str(out)).code == 0
    guest = LabAuthority.load(world.pki_dir("default"))
    assert not guest.may_issue
    assert world.run("--lab", "other", "operator", "use", str(out)).code == 64
    for words in (("add", "eve", "--out", str(tmp_path / "eve.pem")), ("push",), ("renew",), ("new-authority",)):
        assert world.run("operator", *words).code == 70, words
    assert world.run("operator", "revoke", "bob").code == 70
    assert world.run("node", "adopt", "w1").code == 0
    assert "eve" in put.read_text(), "who does not keep the lab does not know who was revoked"
    assert nobody("w1", "ssh-ed25519", "SHA256:x") is False


def test_agents_come_to_several_nodes_at_once(
    world: World, authority: LabAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(world.directory / "rig")
    monkeypatch.setattr("labctl.lab.bundle.build_bundle", lambda **kind: rig.bundle("one"))
    nodes = {
        name: Provisioned(world.directory / name, Node(name=name, address="h")) for name in ("w1", "w2", "w3")
    }
    world.logins.update(nodes)
    nodes["w3"].python = "3.9"
    before = {name: node.files() for name, node in nodes.items()}
    done = world.run("node", "install", "w1", "w2", "w3")
    assert done.code == 3
    assert done.out.splitlines() == ["w1 has agent 0.1.0, and it answers", "w2 has agent 0.1.0, and it answers"]
    assert "warning: w3: the agent cannot run here: Python 3.9" in done.err
    for name in ("w1", "w2"):
        assert nodes[name].files()["etc/groundfault/node"] == f"{name}\n"
        assert nodes[name].files()["etc/groundfault/tls/node.key"].startswith("-----BEGIN PRIVATE KEY")
    for node in nodes.values():
        node.found.clear()
    data = world.run("node", "remove", "w1", "w2", "w3", "--json").data
    assert [one["removed"] for one in data["nodes"].values()] == [True, True, False]
    assert {name: node.files() for name, node in nodes.items()} == before
    assert world.run("node", "install").code == 64


def test_one_node_alone_is_told_as_an_error(world: World, authority: LabAuthority) -> None:
    node = Provisioned(world.directory / "w1", Node(name="w1", address="h"))
    node.python = "3.9"
    world.logins["w1"] = node
    done = world.run("node", "install", "w1")
    assert done.code == 3 and done.err.splitlines()[-1].startswith("error: w1: the agent cannot run here")
    assert "nothing to remove" in world.run("node", "remove", "w1").out


def test_another_authority_on_the_command_line(world: World, authority: LabAuthority) -> None:
    world.lab.count = 2
    nodes = [provision(world, authority, "w1")]
    done = world.run("operator", "new-authority")
    assert done.code == 70 and "the old authority goes on; nothing was turned" in done.err
    assert LabAuthority.load(authority.directory).lab_id == authority.lab_id
    assert nodes[0].path(f"{at.TLS}/ca.pem").read_text().count("BEGIN CERTIFICATE") == 2
    nodes.append(provision(world, authority, "w2"))
    data = world.run("operator", "new-authority", "--json").data
    assert (data["renewed"], data["failed"]) == (["w1", "w2"], []) and data["authority"] != authority.lab_id
    after = LabAuthority.load(authority.directory)
    for node in nodes:
        assert node.path(f"{at.TLS}/ca.pem").read_bytes() == after.own_pem()
        shown = x509.load_pem_x509_certificate(node.path(f"{at.TLS}/node.pem").read_bytes())
        shown.verify_directly_issued_by(after.certificate)
    assert after.ca_file.read_bytes() == after.own_pem()
    for node in nodes:
        node.found.pop("authority", None)
    assert world.run("node", "adopt", "w1").code == 0
