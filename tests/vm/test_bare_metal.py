"""Machines that somebody owns, as docs/real-hosts.md and docs/access.md tell it: w3 without its agent, behind w1,
a jump host; two operators; certificates renewed under a live injection; a clock a year behind.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from labctl.lab import footprint as at
from labctl.lab.model import Node
from tests.lab import LabUnderTest, ssh, ssh_argv
from tests.user import LAB, labctl, labctl_json
from tests.vm.test_node_install import CHANGING, LOOK

pytestmark = [pytest.mark.vm, pytest.mark.thorough, pytest.mark.timeout(1800)]

ACCOUNTS = "cat /etc/passwd /etc/group; dpkg-query -W 2>/dev/null"


def state(node: Node) -> list[str]:
    """Files, units, devices, accounts and packages of a node, without what changes by itself."""
    lines = ssh(node, LOOK + ACCOUNTS).stdout.splitlines()
    return sorted(line for line in lines if not line.startswith(CHANGING))


def host_key(node: Node) -> paramiko.PKey:
    """As known_hosts of the lab has it."""
    assert node.known_hosts
    wanted = f"[{node.address}]:{node.ssh_port}"
    _, kind, text = next(
        line.split()[:3] for line in node.known_hosts.read_text().splitlines() if line.startswith(wanted)
    )
    return paramiko.PKey.from_type_string(kind, base64.b64decode(text))


@dataclass(frozen=True)
class Rack:
    """A lab of real hosts over nodes of the lab under test."""

    directory: Path
    node: Node

    def __call__(self, *argv: str, status: int | None = 0) -> str:
        done = labctl(*argv, status=status, lab="rack")
        return done.stdout + done.stderr

    def data(self, *argv: str, status: int | None = 0) -> Any:
        return labctl_json(*argv, status=status, lab="rack")

    def inventory(self, text: str) -> str:
        file = self.directory / "hosts.toml"
        file.write_text(text)
        return str(file)


def by_jump(lab: LabUnderTest, directory: Path, **changes: str) -> str:
    """w3 as db1: by its address in the lab's network, which only w1 reaches."""
    w1, w3 = lab.node("w1"), lab.node("w3")
    table = {"address": "10.77.0.3", "jump": "w1", "key": str(w3.ssh_key), "known_hosts": str(directory / "known"),
             "fingerprint": host_key(w3).fingerprint, **changes}  # fmt: skip
    rows = "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    return (
        f'[nodes.db1]\n{rows}\n[jumps.w1]\naddress = "{w1.address}"\nport = {w1.ssh_port}\n'
        f'key = "{w1.ssh_key}"\nknown_hosts = "{w1.known_hosts}"\n'
    )


@pytest.fixture(scope="module")
def rack(lab: LabUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """w3 has no agent, and is a host of a lab `rack`, which the first test makes."""
    lab.reset()
    labctl("node", "remove", "w3")
    yield Rack(tmp_path_factory.mktemp("rack"), lab.node("w3"))
    lab.reset()


@pytest.fixture
def bare(lab: LabUnderTest, rack: Rack) -> Rack:
    """The same for each test, whatever one that failed has left."""
    if ssh(lab.node("w3"), f"test -e {at.PROGRAM} -o -e {at.UNIT_FILE}", check=False).returncode == 0:
        lab.reset()
        labctl("node", "remove", "w3")
    return replace(rack, node=lab.node("w3"))


def test_from_an_inventory_to_a_node_that_is_as_it_was(lab: LabUnderTest, bare: Rack) -> None:
    before = state(bare.node)
    wrong = bare.inventory(by_jump(lab, bare.directory, fingerprint=host_key(lab.node("w2")).fingerprint))
    refused = bare("up", "--provider", "ssh", "--inventory", wrong, status=70)
    assert host_key(bare.node).fingerprint in refused and "than the inventory names" in refused

    right = bare.inventory(by_jump(lab, bare.directory))
    assert "db1 has no agent yet" in bare("up", "--provider", "ssh", "--inventory", right)
    with ThreadPoolExecutor(2) as both:
        ends = list(both.map(lambda _: labctl("node", "install", "db1", status=None, lab="rack"), range(2)))
    assert sorted(one.returncode for one in ends) == [0, 64], [one.stderr for one in ends]
    assert any("is installing or removing the agent; nothing was changed" in one.stderr for one in ends)

    facts = bare.data("doctor", "--all")["facts"]["db1"]
    assert (facts["node"], facts["machine"]) == ("db1", "x86_64")
    planted = bare.data("inject", "cpu_burn", "--node", "db1", "--for", "10m")["id"]
    assert f"injections are live: {planted}" in bare("node", "install", "db1", status=64)
    bare("node", "install", "db1", "--recover")
    entries = bare.data("audit", "db1")["nodes"]["db1"]["entries"]
    assert [(one["who"], one["method"]) for one in entries if one["method"] == "Apply"] == [
        ("root by SSH", "Apply")
    ]
    assert ("agent", "start") in {(one["who"], one["method"]) for one in entries}
    assert "are gone" in bare("node", "remove", "db1")
    assert state(bare.node) == before


def test_a_login_that_cannot_be_root_is_refused(lab: LabUnderTest, bare: Rack) -> None:
    key = ssh(bare.node, "cat /root/.ssh/authorized_keys").stdout.strip()
    # sshd lets nobody in whose account is locked, which is what useradd makes.
    ssh(bare.node, "useradd --create-home --password '*' ops && install -d -m 700 -o ops -g ops /home/ops/.ssh && "
        f"echo '{key}' > /home/ops/.ssh/authorized_keys && chown ops: /home/ops/.ssh/authorized_keys")  # fmt: skip
    before = state(bare.node)
    bare("up", "--inventory", bare.inventory(by_jump(lab, bare.directory, user="ops")))
    refused = bare("node", "install", "db1", status=3)
    assert "user ops is not root, and there is no sudo; the agent has to be root's" in refused
    assert state(bare.node) == before
    ssh(bare.node, "userdel --remove ops")


def test_a_node_that_a_tool_provisioned(lab: LabUnderTest, bare: Rack, tmp_path: Path) -> None:
    """By the commands that docs/real-hosts.md gives for it."""
    bare("up", "--inventory", bare.inventory(by_jump(lab, bare.directory)))
    before = state(bare.node)
    archive = bare.data("node", "bundle", "--python", "3.13")["bundle"]
    bare("node", "files", "db1", "--out", str(tmp_path / "tls"))
    with Path(archive).open("rb") as content:
        subprocess.run(ssh_argv(bare.node, "tar -xz -C / --no-same-owner -f -"), stdin=content, check=True)
    ssh(bare.node, f"install -d {at.CONFIG} && install -d -m 700 {at.TLS} && echo db1 > {at.NODE_FILE}")
    for file in (tmp_path / "tls").iterdir():
        with file.open("rb") as content:
            put = ssh_argv(bare.node, f"install -m 600 /dev/stdin {at.TLS}/{file.name}")
            subprocess.run(put, stdin=content, check=True)
    ssh(bare.node, f"cp {at.UNIT_SOURCE} {at.UNIT_FILE} && systemctl daemon-reload")
    not_yet = bare("node", "adopt", "db1", status=64)
    assert "is disabled, not enabled" in not_yet and "is inactive, not active" in not_yet
    ssh(bare.node, f"systemctl enable --now {at.UNIT}")
    assert "db1 is taken in" in bare("node", "adopt", "db1")
    bare("node", "remove", "db1")
    assert state(bare.node) == before


@dataclass(frozen=True)
class Elsewhere:
    """Another machine of another operator: a state of its own."""

    home: Path

    def __call__(self, *argv: str, status: int = 0) -> str:
        env = {**os.environ, "XDG_STATE_HOME": str(self.home)}
        command = (sys.executable, "-m", "labctl", "--lab", LAB, *argv)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == status, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def bob(lab: LabUnderTest, tmp_path: Path) -> Elsewhere:
    """Who has a certificate for w1 and an inventory."""
    w1 = lab.node("w1")
    labctl("operator", "add", "bob", "--out", str(tmp_path / "bob.pem"))
    file = tmp_path / "hosts.toml"
    file.write_text(f'[nodes.w1]\naddress = "{w1.address}"\nport = {w1.ssh_port}\nagent_port = {w1.agent_port}\n'
                    f'key = "{w1.ssh_key}"\nknown_hosts = "{w1.known_hosts}"\n')  # fmt: skip
    elsewhere = Elsewhere(tmp_path / "state")
    elsewhere("operator", "use", str(tmp_path / "bob.pem"))
    elsewhere("up", "--provider", "ssh", "--inventory", str(file))
    return elsewhere


def test_two_operators_one_of_whom_is_let_in_no_more(lab: LabUnderTest, bob: Elsewhere) -> None:
    lab.reset()
    planted = json.loads(bob("inject", "cpu_burn", "--node", "w1", "--for", "10m", "--json"))["id"]
    old = labctl_json("doctor", "--node", "w1")["certificates"]
    labctl("node", "renew", "w1")
    assert old == [] and [one["id"] for one in labctl_json("injections")["injections"]] == [planted]
    assert "cannot" not in bob("status")

    assert "on w1, w2" in labctl("operator", "revoke", "bob").stdout
    assert "refuses our certificate: this certificate was revoked on" in bob("status", status=70)
    labctl("recover", "--all")
    entries = labctl_json("audit", "w1")["nodes"]["w1"]["entries"]
    told = [(one["who"], one["method"], one["result"]) for one in entries if one["who"] != "agent"]
    assert (
        ("bob", "Apply", "ok") in told
        and ("bob", "", "revoked") in told
        and told[-1] == ("labctl", "Recover", "ok")
    )
    lab.reset()  # without labctl: the snapshot knows nothing of bob
    assert "refuses" not in bob("status")
    labctl("reset")
    assert "revoked on" in bob("status", status=70)


def test_a_clock_a_year_behind(lab: LabUnderTest) -> None:
    lab.reset()
    node = lab.node("w2")
    ssh(node, "date -s '-1 year'")
    told = labctl("status", "--node", "w2", status=70).stdout
    year = ssh(node, "date +%Y-%m-%d").stdout.strip()
    assert f"refuses our certificate as not yet valid: node clock is {year}" in told
    assert labctl_json("--transport", "ssh", "node", "facts", "w2")["node"] == "w2"
    lab.reset()
    assert labctl_json("status", "--node", "w2")["nodes"][0]["agent"] == "answers"
