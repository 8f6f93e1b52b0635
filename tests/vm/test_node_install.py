"""The agent's coming and going on a real node, typed as a user types it, without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from labctl.lab import footprint as at

pytestmark = pytest.mark.vm

LOOK = """
export SYSTEMD_BUS_TIMEOUT=300
find /opt /etc /var/lib /var/tmp /tmp /run/groundfault -xdev '(' -type f -o -type l -o -type d ')' 2>/dev/null
systemctl list-unit-files --no-legend || exit
dmsetup table
losetup --list --noheadings
"""
CHANGING = ("/var/lib/systemd/", "/var/lib/private", "/tmp/systemd-private", "/var/tmp/systemd-private")


@dataclass
class Typed:
    """Commands of one lab, run as a user runs them."""

    env: dict[str, str]

    def __call__(self, *argv: str, code: int = 0) -> str:
        command = (sys.executable, "-m", "labctl", "--lab", "install", *argv)
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=self.env, check=False)
        assert done.returncode == code, f"labctl {' '.join(argv)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def data(self, *argv: str) -> Any:
        """What a command answers under --json."""
        return json.loads(self(*argv, "--json"))

    def state(self) -> list[str]:
        """Files, units, devices and loops of the node, without what changes by itself."""
        lines = self("ssh", "w1", "--", "sh", "-c", LOOK).splitlines()
        return sorted(line for line in lines if not line.startswith(CHANGING))


@pytest.fixture(scope="module")
def labctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """A lab of one node without an agent."""
    typed = Typed({**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))})
    typed.env.pop("GROUNDFAULT_LAB", None)
    try:
        typed("up", "--nodes", "1", "--bare")
        yield typed
    finally:
        typed("down", "--destroy")


@pytest.mark.timeout(1800)
def test_an_agent_comes_and_goes_without_a_trace(labctl: Typed) -> None:
    before = labctl.state()
    assert labctl.data("status")["nodes"][0]["agent"] == "none"
    assert "nothing to remove" in labctl("node", "remove", "w1")

    assert "it answers" in labctl("node", "install", "w1")
    report = labctl.data("status")["nodes"][0]
    assert (report["agent"], report["live"]) == ("answers", 0)
    assert labctl.data("doctor", "--node", "w1")["nodes"]["w1"]["faults"]
    modes = labctl("ssh", "w1", "--", "stat", "--format", "%a %n", at.TLS, f"{at.TLS}/node.key")
    assert modes.split()[::2] == ["700", "600"]

    planted = labctl.data("inject", "latent_sector_error", "--node", "w1", "--backend", "dm", "--for", "10m")
    assert planted["injections"][0]["evidence"]["armed"]
    refused = labctl("node", "install", "w1", code=64)
    assert f"injections are live: {planted['id']}" in refused

    assert "are gone" in labctl("node", "remove", "w1")
    assert labctl.state() == before
    assert labctl.data("status")["nodes"][0]["agent"] == "none"


@pytest.mark.timeout(1800)
@pytest.mark.thorough
def test_an_install_that_was_cut_is_finished_by_the_next(labctl: Typed) -> None:
    before = labctl.state()
    labctl("ssh", "w1", "--", "mkdir", "-p", f"{at.STAGING}/half", f"{at.RETIRED}/old", at.PROGRAM)
    labctl("node", "install", "w1")
    labctl("node", "install", "w1")
    assert not [line for line in labctl.state() if line.startswith((at.STAGING, at.RETIRED))]
    labctl("power", "w1", "cycle")
    assert labctl.data("status")["nodes"][0]["agent"] == "answers"
    labctl("node", "remove", "w1")
    assert labctl.state() == before
