"""kernel_hang, kernel_panic and reboot on real kernels: from outside, and what the next boot tells of them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from labctl.lab.model import Node
from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json, until

pytestmark = pytest.mark.vm

HANG_S = 12
BOOT_S = 300.0
LIMITS = "cat /proc/sys/kernel/sched_rt_runtime_us /sys/kernel/debug/sched/fair_server/cpu*/runtime"
TICKER = """nohup python3 -c '
import time
last, longest = time.monotonic(), 0
while last:
    time.sleep(0.1)
    now = time.monotonic()
    last, longest = now, max(longest, now - last)
    open("/run/longest", "w").write(str(longest))
' >/dev/null 2>&1 & sleep 1"""
WITHOUT_SYNC = """
rm -f /var/tmp/late; sync
sysctl -q vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=360000
echo written > /var/tmp/late
"""


@pytest.fixture(scope="module", autouse=True)
def fresh(lab: LabUnderTest) -> Iterator[None]:
    lab.reset()
    yield
    lab.reset()


def boot_id(node: Node) -> str:
    """Empty where the node does not answer."""
    try:
        return ssh(node, "cat /proc/sys/kernel/random/boot_id", check=False, timeout=60).stdout.strip()
    except subprocess.TimeoutExpired:
        return ""


def banner(node: Node, within_s: float) -> tuple[bool, bool]:
    """Whether sshd's port takes a connection, and whether somebody then says something."""
    try:
        with socket.create_connection((node.address, node.ssh_port), within_s) as channel:
            channel.settimeout(within_s)
            return True, channel.recv(4) == b"SSH-"
    except OSError as error:
        return isinstance(error, TimeoutError), False


def inject(node: str, fault: str, *more: str) -> str:
    """The id of what a user has planted."""
    planted = labctl_json("inject", fault, "--node", node, "--accept-reboot", *more)["injections"]
    assert [(one["state"], one["evidence"]["armed"]) for one in planted] == [("active", True)]
    return str(planted[0]["id"])


def test_a_risk_that_nobody_accepts(lab: LabUnderTest) -> None:
    before = known()
    for fault, field in (("reboot", "accept_reboot"), ("kernel_hang", "accept_reboot")):
        assert f"{field}: " in labctl("inject", fault, "--node", "w1", status=64).stderr
    refused = labctl("inject", "kernel_panic", "--node", "w1", "--accept-reboot", status=64)
    assert "accept_data_loss: what programs have written and not synced is lost" in refused.stderr
    assert known() == before


def known() -> set[str]:
    """The ids of all injections there have been; those of the hardware outlive a reset of the lab."""
    return {one["id"] for one in labctl_json("injections", "--all")["injections"]}


def test_one_that_is_called_off_does_not_happen(lab: LabUnderTest) -> None:
    node, before = lab.node("w1"), boot_id(lab.node("w1"))
    called_off = inject("w1", "reboot", "--delay-s", "60")
    labctl("recover", called_off)
    inject("w1", "reboot", "--how", "hard", "--accept-data-loss", "--delay-s", "60")
    ssh(node, "systemctl kill --signal=KILL groundfault-agent")
    lab.ready(node)
    assert ssh(node, "pgrep -f end_machine", check=False).stdout == "", "it has ended with the agent"
    assert boot_id(node) == before and labctl_json("node", "residue", "w1")["entries"] == []


def test_a_hang_that_ends_by_itself(lab: LabUnderTest) -> None:
    node = lab.node("w1")
    usual = ssh(node, f"{LIMITS}; {TICKER}").stdout
    hung = inject("w1", "kernel_hang", "--hang-s", str(HANG_S), "--delay-s", "8")
    until("it hangs", lambda: not banner(node, 3.0)[1], 30)
    assert banner(node, 3.0) == (True, False), "the kernel takes connections, and nobody serves them"
    assert banner(lab.node("w2"), 20.0) == (True, True), "another node"
    until("it goes on", lambda: banner(node, 10.0)[1], 60)
    (seen,) = labctl_json("evidence", hung)["injections"]
    assert seen["state"] == "active" and seen["evidence"]["hits"] == 1
    assert HANG_S - 0.5 < seen["evidence"]["counters"]["hung_ms"] / 1000 < HANG_S + 3
    longest = float(ssh(node, "cat /run/longest").stdout)
    assert HANG_S - 0.5 < longest < HANG_S + 3, "by a process that only tells the time"
    labctl("recover", hung)
    assert ssh(node, LIMITS).stdout == usual and labctl_json("node", "residue", "w1")["entries"] == []


@pytest.mark.thorough
def test_three_ways_to_a_reboot_with_other_faults_standing(lab: LabUnderTest) -> None:
    """w1 in order, w2 by its reset button, w3 by a panic while its clock is ahead by a year and more."""
    nodes = {name: lab.node(name) for name in ("w1", "w2", "w3")}
    before = {name: boot_id(node) for name, node in nodes.items()}
    console = Path(str(nodes["w3"].ssh_key)).parent / "nodes" / "w3" / "console.log"
    said = console.stat().st_size
    labctl("inject", "clock_jump", "--node", "w3", "--by-s", str(400 * 86_400), "--id", "ahead")
    lossy = "--accept-data-loss"
    wanted = {"w1": ("reboot",), "w2": ("reboot", "--how", "hard", lossy),
              "w3": ("kernel_panic", "--reboot-after-s", "3", lossy)}  # fmt: skip
    planted = {}
    for name, words in wanted.items():
        ssh(nodes[name], WITHOUT_SYNC)
        planted[name] = inject(name, *words)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: _wait_for_another_boot(nodes[name], before[name]), nodes))
        there = ssh(nodes["w3"], "date +%s").stdout
        asked = time.time()
        list(pool.map(lab.ready, nodes.values()))
    ended = {one["id"]: one for one in labctl_json("injections", "--all")["injections"]}
    after = {name: boot_id(node) for name, node in nodes.items()}
    for name, one in planted.items():
        view = ended[one]
        assert (view["state"], view["evidence"]["hits"]) == ("recovered", 1)
        assert view["evidence"]["notes"] == [
            f"the node has rebooted: it was planted in boot {before[name]}, this is boot {after[name]}"
        ]
    assert [ended[planted[name]]["reason"] for name in wanted] == ["agent stopped", "restart", "restart"]
    assert [bool(ended[planted[name]]["data_lost"]) for name in wanted] == [False, True, True]
    late = {name: ssh(nodes[name], "cat /var/tmp/late", check=False).stdout.strip() for name in ("w1", "w2")}
    assert late == {"w1": "written", "w2": ""}, "in order it is written back, at once it is not"
    with console.open("rb") as log:
        log.seek(said)
        lines = log.read().decode(errors="replace")
    assert "Kernel panic - not syncing: sysrq triggered crash" in lines and "Rebooting in 3 seconds" in lines
    assert ended["ahead"]["state"] == "recovered"
    assert asked - 60 < float(there) < asked + 2, "the RTC has kept the true time"
    for name, node in nodes.items():
        assert labctl_json("node", "residue", name)["entries"] == []
        assert ssh(node, "cat /proc/sys/kernel/panic").stdout.strip() == "0"


def _wait_for_another_boot(node: Node, before: str) -> None:
    until(f"{node.name} has another boot id", lambda: boot_id(node) not in ("", before), BOOT_S)


def test_the_plan_says_what_it_costs(lab: LabUnderTest) -> None:
    plan = json.dumps(labctl_json("inject", "kernel_panic", "--node", "w1", "--reboot-after-s", "0", "--plan"))
    assert "its power has to be cut" in plan and "the node goes down" in plan
