"""The playbooks on a node of the lab without an agent, over SSH: twice, in check mode, beside labctl, and gone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.lab import footprint as at
from labctl.lab.model import Node
from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json
from tests.vm.test_bare_metal import state

pytestmark = [pytest.mark.vm, pytest.mark.thorough, pytest.mark.timeout(1800)]

ANSIBLE = Path(__file__).parents[2] / "ansible"
LAB = "playbook"
RECAP = re.compile(r"^db1\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)
WHERE = f"find {at.PROGRAM} {at.CONFIG} {at.UNIT_FILE} -name __pycache__ -prune -o"
FOOTPRINT = (
    f"{WHERE} -printf '%p %m %u %g %y\\n'; {WHERE} -type f -not -path '{at.TLS}/*' -exec sha256sum '{{}}' +"
)


@dataclass(frozen=True)
class Site:
    """w3 as db1: a host of a lab `playbook`, and of an inventory of Ansible's."""

    directory: Path
    node: Node

    def __call__(self, *argv: str, status: int | None = 0) -> str:
        done = labctl(*argv, status=status, lab=LAB)
        return done.stdout + done.stderr

    def data(self, *argv: str) -> Any:
        return labctl_json(*argv, lab=LAB)

    def play(self, playbook: str, *options: str, failed: int = 0, **variables: object) -> tuple[int, str]:
        """Run a playbook: how much it changed, and all that it said."""
        program = Path(sys.executable).with_name("ansible-playbook")
        command = (str(program), "-i", str(self.directory / "inventory.yml"))
        argv = (*command, *options, "-e", json.dumps(variables), str(ANSIBLE / playbook))
        env = {**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, env=env)
        said = done.stdout + done.stderr
        found = RECAP.search(said)
        assert found and found[2] == "0" and int(found[3]) == failed, said
        return int(found[1]), said


def inventories(node: Node, directory: Path) -> None:
    """The host in labctl's words and in Ansible's."""
    (directory / "hosts.toml").write_text(
        f'[nodes.db1]\naddress = "{node.address}"\nport = {node.ssh_port}\nagent_port = {node.agent_port}\n'
        f'key = "{node.ssh_key}"\nknown_hosts = "{node.known_hosts}"\n'
    )
    host = {
        "ansible_host": node.address, "ansible_port": node.ssh_port, "ansible_user": node.ssh_user,
        "ansible_ssh_private_key_file": str(node.ssh_key),
        "ansible_ssh_common_args": f"-F /dev/null -o UserKnownHostsFile={node.known_hosts}",
        "groundfault_agent_payload": str(directory / "payload"),
    }  # fmt: skip
    (directory / "inventory.yml").write_text(json.dumps({"groundfault": {"hosts": {"db1": host}}}))


@pytest.fixture
def site(lab: LabUnderTest, tmp_path: Path) -> Iterator[Site]:
    """w3 has no agent, and there is a payload for it."""
    lab.reset()
    labctl("node", "remove", "w3")
    made = Site(tmp_path, lab.node("w3"))
    inventories(made.node, made.directory)
    made("up", "--provider", "ssh", "--inventory", str(made.directory / "hosts.toml"))
    made("node", "payload", "db1", "--out", str(made.directory / "payload"), "--python", "3.13")
    yield made
    lab.reset()


def footprint(node: Node) -> list[str]:
    """Paths, modes, owners and contents of what the agent has on a node, but for the certificates' contents."""
    return sorted(ssh(node, FOOTPRINT).stdout.splitlines())


def test_by_ansible_twice_then_by_labctl_twice_and_away(site: Site) -> None:
    before = state(site.node)
    would, _ = site.play("install.yml", "--check")
    assert would and state(site.node) == before
    assert site.play("install.yml")[0]
    made = footprint(site.node)
    assert "db1 is taken in" in site("node", "adopt", "db1")
    planted = site.data("inject", "cpu_burn", "--node", "db1", "--for", "10m")["id"]
    assert site.play("install.yml")[0] == 0
    assert [one["id"] for one in site.data("injections")["injections"]] == [planted]
    site("node", "install", "db1", "--recover")
    site("node", "install", "db1")
    assert footprint(site.node) == made
    assert site.play("install.yml", "--check")[0] == 0
    assert "are gone" in site("node", "remove", "db1")
    assert state(site.node) == before


def test_with_a_disk_and_a_fault_on_it_and_away_by_ansible(site: Site) -> None:
    before = state(site.node)
    site.play("install.yml", groundfault_agent_disks=[{"name": "spare", "size_mib": 64}])
    site("node", "adopt", "db1")
    ssh(site.node, "head -c 65536 /dev/urandom > /srv/spare/rows && sync -f /srv/spare/rows")
    site("inject", "latent_sector_error", "--node", "db1", "--disk", "spare", "--for", "10m")
    read = ssh(site.node, "dd if=/srv/spare/rows iflag=direct bs=4096 of=/dev/null", check=False)
    assert "Input/output error" in read.stderr
    _, refused = site.play("uninstall.yml", failed=1)
    assert "disks are under device mapper: spare; nothing was removed" in refused
    assert site.play("uninstall.yml", groundfault_agent_undo_disks=True)[0]
    assert state(site.node) == before
