"""cpu_throttle and cpu_burn on a real kernel, by its account of who had how much CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import pytest

from labctl.errors import LabctlError
from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.disks import Bench, disk_bench
from tests.vm.services import BUSY, COUNTS, GROUPS, beats, group_of, services, shares, show

pytestmark = pytest.mark.vm

SYSTEM = "/sys/fs/cgroup/system.slice"
LEFT_BY_SYSTEMD = "/run/systemd/system.control /etc/systemd/system.control"
SWITCHES = "cd /sys/fs/cgroup; grep . cgroup.subtree_control */cgroup.subtree_control */*/cgroup.subtree_control"


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w3") as one, services(one, neighbour=("Restart=always", COUNTS)):
        yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    """Quotas and switches are as they were, and the neighbour has not been restarted."""
    look = f"{SWITCHES}; cat {SYSTEM}/neighbour.service/cpu.max; ls {LEFT_BY_SYSTEMD}"
    before = bench.sh(look, check=False), show(bench, "neighbour", "MainPID", "InvocationID")
    bench.mine.clear()
    yield
    bench.recover_all()
    until("nothing is left", lambda: bench.agent.residue() == (), 30)
    assert (bench.sh(look, check=False), show(bench, "neighbour", "MainPID", "InvocationID")) == before


def quota(bench: Bench, unit: str) -> str:
    return bench.sh(f"cat {group_of(unit)}/cpu.max")


def refused(bench: Bench, fault: str, **parameters: object) -> str:
    """What is said when a fault is not planted."""
    with pytest.raises(LabctlError) as refusal:
        bench.agent.apply(f"refused-{token_hex(4)}", fault, parameters, 60)
    return f"{refusal.value} {refusal.value.hint}"


def test_a_quota_stays_through_restarts_and_is_restored(bench: Bench) -> None:
    with services(bench, victim=("Restart=always", BUSY)):
        free = shares(bench, "victim")[0]
        view = bench.inject("cpu_throttle", unit="victim", quota_percent=20)
        assert quota(bench, "victim") == "20000 100000" and quota(bench, "neighbour") == "max 100000"
        held = shares(bench, "victim", seconds=4)[0]
        assert free > 0.5 and 0.15 < held < 0.24, (free, held)
        assert beats(bench, "neighbour")[0] > 5
        found = bench.evidence(view)
        assert found.hits == found.counters["nr_throttled"] > 10 and bench.seen(view) == [True]
        bench.sh("systemctl restart victim; systemctl daemon-reload")
        until("it has its quota again", lambda: bench.evidence(view).counters["followed"] >= 1, 20)
        assert 0.1 < shares(bench, "victim", seconds=4)[0] < 0.26 and bench.evidence(view).armed
        bench.recover(view)
        assert quota(bench, "victim") == "max 100000" and shares(bench, "victim")[0] > 0.5
        assert show(bench, "victim", "CPUQuotaPerSecUSec") == ["infinity"]


def test_a_quota_that_somebody_sets_meanwhile_is_kept(bench: Bench) -> None:
    with services(bench, victim=("CPUQuota=50%", BUSY), other=("CPUQuota=60%\nCPUQuotaPeriodSec=20ms", BUSY)):
        first = bench.inject("cpu_throttle", unit="victim", quota_percent=10, period_ms=50)
        second = bench.inject("cpu_throttle", unit="other", quota_percent=10)
        assert quota(bench, "victim") == "5000 50000" and "held by" in refused(
            bench, "cpu_throttle", unit="victim"
        )
        bench.sh("systemctl set-property --runtime other CPUQuota=40%")
        until("ours is in force again", lambda: quota(bench, "other") == "10000 100000", 20)
        bench.recover(first)
        bench.recover(second)
        assert quota(bench, "victim") == "50000 100000", "as its file says"
        assert quota(bench, "other") == "8000 20000", "as the administrator has said meanwhile"
        assert "50 % already" in refused(bench, "cpu_throttle", unit="victim", quota_percent=55)
    bench.sh("rm -rf /run/systemd/system.control; systemctl daemon-reload")


def test_a_control_group_inside_another(bench: Bench) -> None:
    """Its controller is off; it is switched on for the length of the injection only."""
    outer = "/sys/fs/cgroup/outer"
    run = f"sh -c 'echo 0 > {outer}/$0/cgroup.procs; exec sh -c \"{BUSY}\"' $0 >/dev/null 2>&1 &"
    groups = f"mkdir -p {outer}/inner/deep {outer}/sibling; {run.replace('$0', 'inner/deep')}"
    bench.sh(f"{groups} {run.replace('$0', 'sibling')}")
    before = bench.sh(SWITCHES, check=False)
    view = bench.inject("cpu_throttle", cgroup="/outer/inner", quota_percent=15)
    inner, sibling = shares(bench, f"{outer}/inner", f"{outer}/sibling", seconds=4)
    assert 0.1 < inner < 0.19 and sibling > 2 * inner, (inner, sibling)
    bench.recover(view)
    assert bench.sh(SWITCHES, check=False) == before
    inner, sibling = shares(bench, f"{outer}/inner", f"{outer}/sibling")
    assert inner > 0.3 and sibling > 0.3
    bench.sh(f"echo 1 > {outer}/cgroup.kill")
    until(
        "it is empty", lambda: bench.sh(f"cat {outer}/inner/deep/cgroup.procs {outer}/sibling/cgroup.procs") == ""
    )
    bench.sh(f"rmdir {outer}/inner/deep {outer}/inner {outer}/sibling {outer}")


def test_a_noisy_neighbour(bench: Bench) -> None:
    with services(bench, victim=("Restart=always", BUSY)):
        free = shares(bench, "victim")[0]
        view = bench.inject("cpu_burn", workers=2, process_name="backup", weight=300)
        group = f"/sys/fs/cgroup/groundfault-{view.id}"
        victim, burner = shares(bench, "victim", group, seconds=5)
        # By weight it is 100 to 300, and the agent has its part of the 100.
        # The clock of a busy emulated machine is good for a tenth.
        assert free > 0.5 and 0.05 < victim < 0.5 * free and 1.5 * victim < burner < 1.1, (free, victim, burner)
        named = bench.sh("ps -C backup -o args=").splitlines()
        assert [line.strip() for line in named] == ["backup"] * 3
        scores = bench.sh(f"for p in $(cat {group}/cgroup.procs); do cat /proc/$p/oom_score_adj; done").split()
        assert scores == ["-1000"] * 3, "the OOM killer is after somebody else"
        found = bench.evidence(view)
        assert found.hits > 1000 and found.counters["workers"] == 2 and bench.seen(view) == [True]
        bench.sh("pkill -9 -n -x backup")
        until("one is left", lambda: bench.evidence(view).counters["workers"] == 1)
        assert "1 of 2 are left" in " ".join(bench.evidence(view).notes)
        bench.recover(view)
        assert shares(bench, "victim")[0] > 0.5 and bench.sh(f"ls -d {group}", check=False) == ""

    third = bench.inject("cpu_burn", load_percent=30, respawn=True)
    group = f"/sys/fs/cgroup/groundfault-{third.id}"
    assert 0.22 < shares(bench, group, seconds=4)[0] < 0.42
    bench.sh("pkill -9 -n -x worker")
    until("it is replaced", lambda: bench.evidence(third).counters["replaced"] == 1)
    assert "cpus" in refused(bench, "cpu_burn", cpus="77")


def test_a_virtual_machine_has_no_frequency(bench: Bench) -> None:
    said = refused(bench, "cpu_frequency_cap")
    assert "no frequency that the kernel can set" in said and "cpu_throttle" in said
    only = refused(bench, "cpu_offline")
    assert "can be taken offline" in only and "more than one CPU" in only
    assert bench.sh(f"ls {GROUPS} | grep -c groundfault-r", check=False) == "0"


@pytest.mark.thorough
def test_an_agent_that_is_killed(bench: Bench) -> None:
    """The last one here: its successor would have to probe the kernel before it could plant anything."""
    with services(bench, victim=("Restart=always", BUSY)):
        bench.inject("cpu_throttle", unit="victim", quota_percent=10)
        bench.inject("cpu_burn", process_name="batch")
        assert bench.sh("pgrep -c -x batch") == "2"
        bench.sh("systemctl kill -s KILL --kill-whom=main groundfault-agent")
        until("they end with the agent", lambda: bench.sh("pgrep -x batch", check=False) == "", 20)
        until("it has no quota any more", lambda: quota(bench, "victim") == "max 100000", 60)
        bench.lab.ready(bench.node)
