"""The three kernels that labs boot, each on a node of its own: it is the one asked for, and faults bite on it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.lab import KernelNode, KernelNodes, ssh_argv

pytestmark = pytest.mark.vm

RELEASES = {
    "debian13": r"6\.12\.\d+.*-cloud-amd64",
    "debian12": r"6\.1\.0-\d+-cloud-amd64",
    "lab": r"6\.12\.\d+-groundfault",
}
FILE = "/srv/data/victim"
DRIVER = Path(__file__).with_name("dust_driver.py")


@pytest.fixture
def agent(kernel_node: KernelNode) -> Iterator[AgentClient]:
    with connect(kernel_node.node, kernel_node.lab.authority) as transport:
        client = AgentClient(transport)
        yield client
        client.recover(everything=True)


def test_the_kernel_is_the_one_asked_for(kernel_node: KernelNode, agent: AgentClient) -> None:
    release = kernel_node.sh("uname -r")
    assert re.fullmatch(RELEASES[kernel_node.kernel], release)
    assert agent.facts().kernel == release
    assert kernel_node.sh("systemctl --failed --no-legend --plain") == ""
    assert kernel_node.sh("test -s /sys/kernel/btf/vmlinux && echo there") == "there"


def test_the_agent_says_what_each_kernel_can_do(kernel_node: KernelNode, agent: AgentClient) -> None:
    found = {c.name: c for c in agent.probe().capabilities}
    assert found["dm.error"].available and found["dm.snapshot"].available and found["loop.direct_io"].available
    assert found["dm.flakey_error_reads"].available == (kernel_node.kernel != "debian12")
    own = ("dm.dust", "kernel.failslab", "kernel.fail_page_alloc", "kernel.fail_make_request",
           "kernel.fail_function", "kernel.fail_futex")  # fmt: skip
    for name in own:
        assert found[name].available == (kernel_node.kernel == "lab"), found[name]
        assert found[name].available or (found[name].reason and found[name].remedy), found[name]
    assert agent.residue() == (), "probing leaves nothing"


def test_a_bad_sector_bites_heals_and_goes(kernel_node: KernelNode, agent: AgentClient) -> None:
    before = kernel_node.sh("dmsetup table; losetup --list --noheadings")
    kernel_node.sh(f"head -c 1048576 /dev/urandom > {FILE}; sync {FILE}")
    view = agent.apply("kernels-1", "latent_sector_error", {"file": FILE, "seed": 3}, 600)
    assert view.state == "active" and view.evidence is not None and view.evidence.armed
    offset = _offset(view.target)
    kernel_node.sh(f"! {_read(offset)} 2>/tmp/said && grep -q 'Input/output error' /tmp/said")
    assert kernel_node.sh(f"{_read(offset + 4096)} && echo well") == "well", "its neighbour is well"
    kernel_node.sh(f"{_write(offset)} && {_read(offset)}")
    (ended,) = agent.recover(("kernels-1",)).injections
    assert ended.state == "recovered" and ended.evidence is not None and ended.evidence.hits > 0
    kernel_node.sh(f"{_read(offset)} && cat {FILE} > /dev/null")
    assert agent.residue() == ()
    assert kernel_node.sh("dmsetup table; losetup --list --noheadings") == before


@pytest.mark.other_kernels
def test_a_bad_sector_by_dm_dust(kernel_nodes: KernelNodes) -> None:
    """Only the lab's own kernel has dm-dust; it is what a kernel without snapshots would be given."""
    lab = kernel_nodes("lab")
    before = lab.sh("dmsetup table; losetup --list --noheadings")
    lab.sh(f"head -c 1048576 /dev/urandom > {FILE}; sync {FILE}")
    lab.sh(f"cat > /tmp/{DRIVER.name} <<'END'\n{DRIVER.read_text()}\nEND")
    argv = ssh_argv(lab.node, "python3", f"/tmp/{DRIVER.name}", FILE)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        planted = _said(driver)
        assert (planted["state"], planted["backend"], planted["evidence"]["armed"]) == ("active", "dm-dust", True)
        offset = _offset(planted["target"])
        tables = lab.sh("dmsetup table")
        assert re.search(r"groundfault-dust-1-media: .* dust ", tables), tables
        lab.sh(f"! {_read(offset)} 2>/tmp/said && grep -q 'Input/output error' /tmp/said")
        lab.sh(f"{_read(offset + 4096)}")
        bad = lab.sh("dmsetup message groundfault-dust-1-media 0 countbadblocks")
        assert re.search(r"countbadblocks: 8 badblock\(s\) found", bad), bad
        lab.sh(f"{_write(offset)} && {_read(offset)}")
        bad = lab.sh("dmsetup message groundfault-dust-1-media 0 countbadblocks")
        assert "countbadblocks: 0 badblock(s) found" in bad, "a rewrite heals"
        bitten = _said(driver, "go on")
        assert bitten["evidence"]["hits"] >= 2
        ended = _said(driver, "recover")
        assert (ended["state"], ended["residue"], ended["differences"]) == ("recovered", [], [])
    lab.sh(f"{_read(offset)} && cat {FILE} > /dev/null")
    assert lab.sh("dmsetup table; losetup --list --noheadings") == before


def _offset(target: str) -> int:
    match = re.search(r"at byte (\d+)", target)
    assert match, target
    return int(match[1])


def _read(offset: int) -> str:
    return f"dd if={FILE} iflag=direct bs=4096 skip={offset // 4096} count=1 status=none of=/dev/null"


def _write(offset: int) -> str:
    return f"dd if=/dev/zero of={FILE} oflag=direct bs=4096 seek={offset // 4096} count=1 conv=notrunc status=none"


def _said(driver: subprocess.Popen[str], line: str = "") -> dict[str, Any]:
    """What the driver says next, after being told a line. Its own end is a failure with nothing to parse."""
    assert driver.stdin is not None and driver.stdout is not None
    if line:
        driver.stdin.write(f"{line}\n")
        driver.stdin.flush()
    said: dict[str, Any] = json.loads(driver.stdout.readline())
    return said
