"""The lab as it is used: nodes with the agent, restored with it running."""

from __future__ import annotations

import time

import pytest

from labctl.progress import PlainProgress
from tests.lab import LabUnderTest, ssh
from tests.user import until

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]


def test_reset_brings_back_the_very_agents_with_a_right_clock(lab: LabUnderTest) -> None:
    lab.reset()
    pid = "systemctl show -P MainPID groundfault-agent"
    ask = f"{pid} && cut -d' ' -f22 /proc/$({pid})/stat"
    before = {node.name: ssh(node, ask).stdout for node in lab.nodes}
    start = time.monotonic()
    lab.reset()
    print(f"reset of {len(lab.nodes)} nodes: {time.monotonic() - start:.1f} s")
    for node in lab.nodes:
        asked = time.time()
        says = float(ssh(node, "date +%s.%N").stdout)
        assert asked - 0.5 <= says <= time.time() + 0.5
        assert ssh(node, ask).stdout == before[node.name]


@pytest.mark.thorough
def test_the_clocks_of_a_restored_guest_do_not_run_on(lab: LabUnderTest) -> None:
    """The watchdogs of a guest that seems to have slept for minutes would end its agent."""

    def since_boot() -> float:
        return float(ssh(lab.node("w1"), "cut -d' ' -f1 /proc/uptime").stdout)

    lab.reset()
    first = since_boot()
    until("the node has been up for a while", lambda: since_boot() > first + 20)
    lab.reset()
    assert since_boot() < first + 15


def test_snapshot_has_no_control_connection_in_it(lab: LabUnderTest) -> None:
    lab.reset()
    for node in lab.nodes:
        lines = ssh(node, "cat /proc/net/tcp /proc/net/tcp6").stdout.splitlines()
        established = [line for line in lines if line.split()[3] == "01"]
        assert len(established) <= 2, established  # the one that asks, and the one that waited for the agent


def test_a_lab_that_was_down_is_up_with_its_agents(lab: LabUnderTest) -> None:
    lab.provider.down(PlainProgress())
    assert not any(status.running for status in lab.provider.status())
    start = time.monotonic()
    lab.provider.up(None, lab.ready, PlainProgress())
    print(f"up of {len(lab.nodes)} nodes from the snapshot: {time.monotonic() - start:.1f} s")
    for node in lab.nodes:
        assert ssh(node, "systemctl is-active groundfault-agent").stdout.strip() == "active"


def test_nothing_on_a_node_names_a_problem(lab: LabUnderTest) -> None:
    listed = ssh(lab.nodes[0], "find /opt/groundfault /etc/groundfault").stdout
    assert "node_agent" in listed
    assert "problems" not in listed
    assert "labctl" not in listed
