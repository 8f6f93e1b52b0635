"""A lab of real nodes for tests, booted once a session with state of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from labctl.lab import store
from labctl.lab.model import LabOptions, Node, Ready
from labctl.lab.qemu import QemuLab
from labctl.lab.store import lab_dir
from labctl.pki import LabAuthority
from labctl.progress import PlainProgress
from labctl.transport.ready import make_ready

READY_S = 180.0


def ssh(node: Node, *argv: str, check: bool = True, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a program on a node as root, with the lab's key and its known host key. The shell there splits words."""
    options = {"UserKnownHostsFile": node.known_hosts, "StrictHostKeyChecking": "yes", "BatchMode": "yes",
               "ConnectTimeout": "30"}  # fmt: skip
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    login = ("-i", str(node.ssh_key), "-p", str(node.ssh_port), f"{node.ssh_user}@{node.address}")
    done = subprocess.run(
        ["ssh", "-F", "/dev/null", *words, *login, "--", *argv], capture_output=True, text=True, timeout=timeout
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{node.name}: {' '.join(argv)} ended with {done.returncode}: {done.stderr}{done.stdout}"
        )
    return done


@dataclass(frozen=True)
class LabUnderTest:
    """A lab that is up. Tests that change a node beyond an injection call `reset` first or last."""

    provider: QemuLab
    ready: Ready
    authority: LabAuthority

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.provider.nodes()

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def reset(self) -> None:
        """Memory and disks of all nodes as they were when the lab was made."""
        self.provider.reset(self.ready, PlainProgress())


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    """Three nodes with agents. XDG_STATE_HOME is the lab's for the whole session; the cache is the user's."""
    before = os.environ.get("XDG_STATE_HOME")
    home = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(home)
    try:
        provider = store.create_lab("vmtests", "qemu")
        assert isinstance(provider, QemuLab)
        authority = LabAuthority.ensure(lab_dir("vmtests") / "pki", "vmtests")
        ready = make_ready(authority, READY_S)
        try:
            provider.up(LabOptions(), ready, PlainProgress())
            yield LabUnderTest(provider, ready, authority)
        finally:
            provider.destroy(PlainProgress())
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
