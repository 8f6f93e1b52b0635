"""The agent is killed with SIGKILL after every journal record, on a real kernel, and the node heals each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab import LabUnderTest, ssh

pytestmark = pytest.mark.vm
DRIVER = Path(__file__).with_name("crash_driver.py")
FILE = "/srv/data/seed/1.bin"


def test_killed_after_every_journal_record(lab: LabUnderTest) -> None:
    lab.reset()
    node = lab.node("w2")
    before = ssh(node, "sha256sum", FILE).stdout, ssh(node, "dmsetup", "table").stdout
    ssh(node, "systemctl", "stop", "groundfault-agent")
    parameters = json.dumps({"file": FILE, "sectors": 16, "seed": 5})
    ssh(node, f"cat > /tmp/driver.py <<'END'\n{DRIVER.read_text()}\nEND")
    out = ssh(node, f"python3 /tmp/driver.py '{parameters}' latent_sector_error", timeout=900, check=False)
    lives = [json.loads(line) for line in out.stdout.splitlines()]
    assert out.returncode == 0, f"{lives}\n{out.stderr}"
    *killed, whole = lives
    assert whole.get("whole_life") == 0, lives[-3:]
    assert len(killed) == whole["records"] + 1 >= 20, "a life has a record for every step, there and back"
    assert [x for x in killed if x["state"] != "recovered" or x["residue"]] == []
    assert (ssh(node, "sha256sum", FILE).stdout, ssh(node, "dmsetup", "table").stdout) == before
    ssh(node, "systemctl", "start", "groundfault-agent")
    lab.reset()
