"""An account that needs its password for sudo: the agent comes, answers over SSH, and goes by it.

On a node of the booking service: those have sudo.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.booking_lab import BookingLab
from tests.user import labctl, labctl_json

pytestmark = [pytest.mark.vm, pytest.mark.thorough, pytest.mark.timeout(1200)]

PASSWORD = "only for this test"
ACCOUNT = f"""
useradd --create-home ops
echo 'ops:{PASSWORD}' | chpasswd
echo 'ops ALL=(ALL) ALL' > /etc/sudoers.d/ops
echo 'ops ALL=(ALL) NOPASSWD: /usr/bin/systemctl' >> /etc/sudoers.d/ops
install -d -m 700 -o ops -g ops /home/ops/.ssh
install -m 600 -o ops -g ops /root/.ssh/authorized_keys /home/ops/.ssh/authorized_keys
"""


@pytest.fixture
def ops(booking_lab: BookingLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BookingLab]:
    """w1 without an agent, as db1 of a lab of hosts; sudo asks for a password, but not before systemctl."""
    labctl("node", "remove", "w1", lab="booking")
    booking_lab.sh("w1", ACCOUNT)
    monkeypatch.delenv("OPS_SUDO", raising=False)
    yield booking_lab
    booking_lab.reset()


def inventory(lab: BookingLab, file: Path, **more: str) -> str:
    w1 = lab.node("w1")
    table = {"address": w1.address, "port": w1.ssh_port, "user": "ops", "key": str(w1.ssh_key), "transport": "ssh",
             "known_hosts": str(w1.known_hosts), **more}  # fmt: skip
    file.write_text("[nodes.db1]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    return str(file)


def test_sudo_with_a_password(ops: BookingLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hosts.toml"
    labctl("up", "--provider", "ssh", "--inventory", inventory(ops, file), lab="rack")
    refused = labctl("node", "install", "db1", status=3, lab="rack").stderr
    assert "user ops is not root and may not use sudo without a password" in refused

    labctl("up", "--inventory", inventory(ops, file, sudo_password_env="OPS_SUDO"), lab="rack")
    assert "OPS_SUDO is not set" in labctl("node", "install", "db1", status=64, lab="rack").stderr
    monkeypatch.setenv("OPS_SUDO", "a wrong one")
    assert "sudo refuses ops" in labctl("node", "install", "db1", status=3, lab="rack").stderr
    monkeypatch.setenv("OPS_SUDO", PASSWORD)
    labctl("node", "install", "db1", lab="rack")
    planted = labctl_json("inject", "cpu_burn", "--node", "db1", "--for", "5m", lab="rack")["id"]
    labctl("recover", "--all", lab="rack")
    entries = labctl_json("audit", "db1", lab="rack")["nodes"]["db1"]["entries"]
    assert {(one["who"], one["what"].get("id")) for one in entries if one["method"] == "Apply"} == {
        ("ops by SSH", planted)
    }
    assert "node-agent" in labctl("logs", "db1", lab="rack").stdout
    assert PASSWORD not in ops.sh("w1", "journalctl --no-pager; cat /var/lib/groundfault/audit/*")
    labctl("node", "remove", "db1", lab="rack")
    assert ops.sh("w1", "ls -d /opt/groundfault /var/lib/groundfault", check=False) == ""
