"""Kernels booted in other ways: without the bpf security module, locked down, with two trees of control groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labctl.errors import LabctlError
from labctl.lab.model import KernelName, LabOptions
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.lab import KernelNode, lab_up, state_home
from tests.vm.witness import install, measure

pytestmark = pytest.mark.vm

PATH = "/srv/data/witness"
LOOP = "while :; do cat /srv/data/h > /run/old.new 2>&1; mv /run/old.new /run/old.out; sleep 0.2; done"


@contextmanager
def booted(tmp_path: Path, kernel: KernelName, *arguments: str) -> Iterator[tuple[KernelNode, AgentClient]]:
    """A lab of one node whose kernel got these words."""
    options = LabOptions(nodes=1, kernel=kernel, kernel_arguments=arguments)
    with state_home(tmp_path), lab_up("boots", options) as lab:
        node = KernelNode(kernel, lab)
        assert all(word in node.sh("cat /proc/cmdline").split() for word in arguments)
        with connect(node.node, lab.authority) as transport:
            yield node, AgentClient(transport)


@pytest.mark.thorough
def test_without_the_bpf_security_module(tmp_path: Path) -> None:
    """Programs load and attach there, and are never run: only trying shows it. The functions around do."""
    with booted(tmp_path, "debian13", "lsm=landlock,lockdown,yama,apparmor") as (node, agent):
        install(node, tmp_path)
        node.sh(f"mkdir -p {PATH}")
        assert "bpf" not in node.sh("cat /sys/kernel/security/lsm").split(",")
        found = {c.name: c for c in agent.probe().capabilities}
        assert not found["bpf.lsm"].available and found["bpf.fmod_ret"].available
        assert "never run" in found["bpf.lsm"].reason and "lsm=" in found["bpf.lsm"].remedy
        view = agent.apply(
            "boots-1", "file_error", {"cgroup": "/witness", "path": PATH, "schedule": "ratio:1/3"}, 60
        )
        assert "fmod_ret" in view.backend
        assert measure(node, "pread64", 6) == ["ok 4096", "ok 4096", "EIO"] * 2
        agent.recover(everything=True)
        assert measure(node, "pread64", 3) == ["ok 4096"] * 3 and agent.residue() == ()


@pytest.mark.thorough
def test_a_kernel_that_is_locked_down_says_so(tmp_path: Path) -> None:
    with booted(tmp_path, "debian13", "lockdown=confidentiality") as (_, agent):
        found = {c.name: c for c in agent.probe().capabilities}
        assert not any(c.available for name, c in found.items() if name.startswith(("bpf.lsm", "bpf.fmod_ret")))
        assert re.search("not permitted|unknown func|cannot use helper", found["bpf.lsm"].reason), found["bpf.lsm"]
        assert "lockdown" in found["bpf.lsm"].remedy
        with pytest.raises(LabctlError, match=r"bpf\.lsm") as refused:
            agent.apply("boots-1", "file_error", {"cgroup": "/witness"}, 60)
        assert "lockdown" in str(refused.value.hint)
        assert agent.residue() == ()


@pytest.mark.other_kernels
def test_two_trees_of_control_groups(tmp_path: Path) -> None:
    """Hybrid: version 1 where it always was, version 2 beside it with the units."""
    with booted(tmp_path, "debian12", "systemd.unified_cgroup_hierarchy=0") as (node, agent):
        assert node.sh("stat -fc %T /sys/fs/cgroup/unified") == "cgroup2fs"
        node.sh(f"echo hello > /srv/data/h; systemd-run --unit=old --quiet sh -c '{LOOP}'")
        agent.apply("boots-1", "file_error", {"unit": "old", "path": "/srv/data/h"}, 60)
        node.sh("for i in $(seq 50); do grep -q Input/output /run/old.out && exit 0; sleep 0.2; done; exit 1")
        assert node.sh("cat /srv/data/h") == "hello"
        agent.recover(everything=True)
        node.sh("for i in $(seq 50); do grep -q hello /run/old.out && exit 0; sleep 0.2; done; exit 1")
        pid = int(node.sh("systemctl show -P MainPID old"))
        agent.apply("boots-2", "file_error", {"tree": pid, "path": "/srv/data/h"}, 60)
        node.sh("for i in $(seq 50); do grep -q Input/output /run/old.out && exit 0; sleep 0.2; done; exit 1")
        agent.recover(everything=True)
        assert agent.residue() == ()
