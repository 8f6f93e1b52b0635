"""docs/real-hosts.md, word for word: what it says to three servers from nothing is typed at a terminal.

On the nodes of the booking service, because those have sudo; the only thing that is not as on the page is where
the hosts are.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl import paths
from tests.booking_lab import BookingLab
from tests.terminal import Shown, blocks, desk, shown, typed
from tests.user import labctl
from tests.vm.test_bare_metal import state

pytestmark = [pytest.mark.vm, pytest.mark.thorough, pytest.mark.timeout(1800)]

HOSTS = {"db1": "w1", "db2": "w2", "db3": "w3"}
PASSWORD = "only for this test"
ACCOUNT = f"""
useradd --create-home ops
echo 'ops:{PASSWORD}' | chpasswd
echo 'ops ALL=(ALL) ALL' > /etc/sudoers.d/ops
install -d -m 700 -o ops -g ops /home/ops/.ssh
install -m 600 -o ops -g ops /root/.ssh/authorized_keys /home/ops/.ssh/authorized_keys
echo '{PASSWORD}' | runuser -u ops -- sudo -S -p '' true
"""
SERVICE = ("/var/lib/postgresql", "/var/lib/etcd", "/var/lib/valkey", "/var/lib/booking", "/tmp/", "/var/tmp/")
"""What the service itself changes meanwhile."""


@pytest.fixture
def servers(booking_lab: BookingLab) -> Iterator[BookingLab]:
    """Three hosts without agents, where ops may log in and has a password for sudo."""
    labctl("node", "remove", "w1", "w2", "w3", lab="booking")
    for node in booking_lab.lab.nodes:
        booking_lab.sh(node.name, ACCOUNT)
    yield booking_lab
    booking_lab.reset()


@pytest.fixture
def home(servers: BookingLab, tmp_path: Path) -> Path:
    """The operator's, with an SSH key in it."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    key = servers.node("w1").ssh_key
    assert key
    shutil.copyfile(key, tmp_path / ".ssh" / "id_ed25519")
    (tmp_path / ".ssh" / "id_ed25519").chmod(0o600)
    return tmp_path


def with_places(lab: BookingLab, inventory: str) -> str:
    """The page's inventory, with the addresses that the hosts have here."""

    def place(found: re.Match[str]) -> str:
        node = lab.node(HOSTS[found[1]])
        return f'address = "{node.address}"\nport = {node.ssh_port}\nagent_port = {node.agent_port}'

    changed, count = re.subn(r'^address = "(\w+)\.example"$', place, inventory, flags=re.M)
    assert count == len(HOSTS)
    return changed


def first_block() -> Shown:
    return shown(next(text for _, text in blocks("real-hosts.md") if "$ cat hosts.toml" in text))


def lines_of(lab: BookingLab) -> dict[str, list[str]]:
    return {node.name: [line for line in state(node) if not line.startswith(SERVICE)] for node in lab.lab.nodes}


def test_three_servers_from_nothing_and_back(servers: BookingLab, home: Path) -> None:
    page = first_block()
    (home / "hosts.toml").write_text(with_places(servers, page.files["hosts.toml"]))
    before = lines_of(servers)
    answers = {"password of ops for sudo: ": PASSWORD, "Is that the right key": "y"}
    status, said = typed(page.commands, answers, desk(home, paths.cache_dir().parent), home, 900.0)
    assert status == 0, said
    assert said.count("the SSH host key is not known") == 3
    assert len(re.findall(r"db\d has agent \S+, and it answers", said)) == 3
    assert "cpu_burn" in said and re.search(r"apply\s+cpu_burn", said)
    assert len(re.findall(r"db\d: the agent and all its files are gone", said)) == 3
    assert PASSWORD not in said and "Traceback" not in said
    assert "lab rack is destroyed" in said
    assert lines_of(servers) == before
    assert not (home / ".local" / "state" / "groundfault" / "labs" / "rack").exists()
