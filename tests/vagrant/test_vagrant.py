"""Vagrant and libvirt for real, with the exported node image: from `labctl up` to `labctl down --destroy`.

System libvirtd is used where it runs; where it does not (a container without systemd) and this is root, it is
started and ended here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.lab.vagrant_files import vagrantfile

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

SYSTEM = ("virsh", "--connect", "qemu:///system")
SETTINGS = """user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = [ ]
remember_owner = 0
stdio_handler = "file"
"""
CONFIG = Path("/etc/libvirt/qemu.conf")


def answers() -> bool:
    return subprocess.run((*SYSTEM, "version"), capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def libvirtd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if answers():
        yield
        return
    directory = tmp_path_factory.mktemp("libvirtd")
    before = CONFIG.read_bytes() if CONFIG.exists() else None
    # Nobody manages control groups in such a container, and there is no console log daemon.
    CONFIG.write_text(SETTINGS)
    Path("/var/log/libvirt").mkdir(exist_ok=True)
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen((shutil.which("libvirtd") or "/usr/sbin/libvirtd",), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not answers():
            assert daemon.poll() is None and time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.2)
        yield
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)
        if before is None:
            CONFIG.unlink()
        else:
            CONFIG.write_bytes(before)


@dataclass(frozen=True)
class Typed:
    """Commands of one lab, run as a user runs them."""

    env: dict[str, str]

    def __call__(self, *argv: str, status: int = 0) -> str:
        command = (sys.executable, "-m", "labctl", "--lab", "vg", *argv)
        done = subprocess.run(command, capture_output=True, text=True, timeout=2400, env=self.env)
        assert done.returncode == status, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def data(self, *argv: str) -> Any:
        return json.loads(self(*argv, "--json"))


def own(directory: Path) -> dict[str, str]:
    """An environment in which nothing of the user's Vagrant or labs is touched."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("VAGRANT_", "GROUNDFAULT_"))}
    return keep | {"VAGRANT_HOME": str(directory / "vagrant"), "VAGRANT_CHECKPOINT_DISABLE": "1"}


@pytest.fixture(scope="module")
def labctl(tmp_path_factory: pytest.TempPathFactory, libvirtd: None) -> Iterator[Typed]:
    """Typed for a place without internet: a box that was exported here."""
    directory = tmp_path_factory.mktemp("vagrant")
    typed = Typed(
        own(directory)
        | {"XDG_STATE_HOME": str(directory / "state"), "GROUNDFAULT_BOX": str(directory / "node.box")}
    )
    typed("image", "export", "--format", "vagrant-libvirt", "--out", str(directory / "node.box"))
    try:
        yield typed
    finally:
        if (directory / "state" / "groundfault" / "labs" / "vg" / "lab.json").exists():
            typed("down", "--destroy")


@pytest.mark.parametrize("backend", ["libvirt", "virtualbox"])
def test_the_vagrantfile_is_valid(backend: str, tmp_path: Path) -> None:
    (tmp_path / "Vagrantfile").write_bytes(vagrantfile())
    env = own(tmp_path) | {"VAGRANT_DEFAULT_PROVIDER": backend, "GROUNDFAULT_NODES": "2"}
    argv = ("vagrant", "validate", *(("--ignore-provider",) if backend == "virtualbox" else ()))
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    argv = ("vagrant", "status", "--machine-readable")
    env["VAGRANT_DEFAULT_PROVIDER"] = "libvirt"
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    states = [line.split(",")[1:4:2] for line in done.stdout.splitlines() if line.split(",")[2:3] == ["state"]]
    assert states == [["w1", "not_created"], ["w2", "not_created"]]


def test_a_lab_from_up_to_destroy(labctl: Typed) -> None:
    labctl("up", "--provider", "vagrant", "--nodes", "3", "--memory", "640")
    nodes = labctl.data("status")["nodes"]
    assert [(one["name"], one["agent"], one["live"]) for one in nodes] == [
        (f"w{n}", "answers", 0) for n in (1, 2, 3)
    ]

    labctl("ssh", "w2", "--", "sh", "-c", "head -c 65536 /dev/zero > /srv/data/file && sync /srv/data/file")
    planted = labctl.data(
        "inject", "latent_sector_error", "--node", "w2", "--file", "/srv/data/file", "--for", "10m"
    )
    assert planted["injections"][0]["evidence"]["armed"]
    assert "Input/output error" in labctl("ssh", "w2", "--", "cat", "/srv/data/file", status=1)
    labctl("recover", "--all")
    labctl("ssh", "w2", "--", "cat", "/srv/data/file")
    assert "no residue" in labctl("node", "residue", "w2")

    labctl("ssh", "w1", "--", "ping", "-c", "1", "-W", "5", "10.77.0.13")
    labctl("inject", "partition", "--groups", "w1/w3", "--for", "10m")
    labctl("ssh", "w1", "--", "ping", "-c", "1", "-W", "5", "10.77.0.13", status=1)
    assert labctl.data("node", "facts", "w1")["node"] == "w1", "control traffic is not parted"

    labctl("reset")
    assert [one["live"] for one in labctl.data("status")["nodes"]] == [0, 0, 0]
    labctl("ssh", "w2", "--", "test", "!", "-e", "/srv/data/file")
    labctl("down")
    assert {one["agent"] for one in labctl.data("status")["nodes"]} == {""}
    labctl("up")
    assert {one["agent"] for one in labctl.data("status")["nodes"]} == {"answers"}
    labctl("down", "--destroy")
    left = subprocess.run((*SYSTEM, "list", "--all", "--name"), capture_output=True, text=True).stdout.split()
    assert not [name for name in left if name.startswith("vg-")]
