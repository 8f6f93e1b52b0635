"""disk_full, inodes_full and readonly_remount on real file systems, measured with df, du, dd and touch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from labctl.errors import UsageError
from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh
from tests.user import until

pytestmark = pytest.mark.vm

TOP = "/srv/data"
OTHER = f"{TOP}/games"
NUMBERS = itertools.count(1)
MAKE = {"ext4": "mkfs.ext4 -q -F -N 4096 -E lazy_itable_init=0", "xfs": "mkfs.xfs -q -f -i maxpct=1"}
"""Few inodes: taking 32,000 takes 10 s in an emulated machine."""


ext4_only = pytest.mark.parametrize("bench", ["ext4"], indirect=True, scope="module")


@dataclass
class Bench:
    """A node whose data disk has a file system of `kind`, and a user's folder on it."""

    node: Node
    agent: AgentClient
    kind: str

    def sh(self, script: str, check: bool = True) -> str:
        return ssh(self.node, script, check=check).stdout.strip()

    def says(self, script: str) -> str:
        """What a command says on standard error; empty where it went well."""
        done = ssh(self.node, script, check=False)
        return done.stderr.strip() if done.returncode else ""

    def user_writes(self) -> str:
        """What an ordinary user, who is not the owner of what fills the disk, is told by a write of a block."""
        return self.says(f"runuser -u games -- dd if=/dev/zero of={OTHER}/block bs=4k count=1 conv=fsync; "
                         f"ended=$?; rm -f {OTHER}/block; exit $ended")  # fmt: skip

    def free(self, what: str) -> int:
        """A column of df; sizes in KiB."""
        return int(self.sh(f"df --output={what} {TOP} | tail -1"))

    def snapshot(self) -> tuple[str, int]:
        """How the disk is mounted, its used inodes and its files; and how many KiB the system's disk has left."""
        text = self.sh(f"findmnt -no OPTIONS {TOP}; df --output=iused {TOP} | tail -1; ls -A {TOP}; "
                       f"cat {TOP}/kept; df --output=avail / | tail -1")  # fmt: skip
        seen, _, root = text.rpartition("\n")
        return seen, int(root)

    def inject(self, fault: str, **parameters: Any) -> InjectionView:
        view = self.agent.apply(f"space-{next(NUMBERS)}", fault, parameters, 600)
        assert view.state == "active" and view.evidence is not None and view.evidence.armed
        return view

    def look(self, view: InjectionView) -> InjectionView:
        (now,) = self.agent.list(ids=(view.id,), ended=True).injections
        return now

    def counters(self, view: InjectionView) -> dict[str, int]:
        evidence = self.look(view).evidence
        assert evidence is not None
        return dict(evidence.counters)

    def recover(self, view: InjectionView) -> InjectionView:
        (ended,) = self.agent.recover((view.id,)).injections
        return ended

    def kill_the_agent(self) -> None:
        """SIGKILL; its unit starts it again, and it is ready when it has recovered."""
        pid = self.sh("systemctl show --property=MainPID --value groundfault-agent")
        self.sh(f"kill -9 {pid}")
        fresh = "systemctl show --property=MainPID,ActiveState --value groundfault-agent"
        until("it is back", lambda: self.sh(fresh).split()[1:] == ["active"] and pid not in self.sh(fresh), 120)

    def refused(self, fault: str, **parameters: Any) -> str:
        """The field that is not taken, and what is allowed."""
        with pytest.raises(UsageError) as refused:
            self.inject(fault, **parameters)
        _node, name, _what = refused.value.message.split(": ", 2)
        return f"{name}: {refused.value.hint}"


@pytest.fixture(scope="module", params=["ext4", pytest.param("xfs", marks=pytest.mark.thorough)])
def bench(request: pytest.FixtureRequest, lab: LabUnderTest) -> Iterator[Bench]:
    lab.reset()
    node = lab.node("w3")
    with connect(node, lab.authority) as transport:
        one = Bench(node, AgentClient(transport), request.param)
        one.sh(f"umount {TOP} && {MAKE[one.kind]} /dev/mapper/data && mount -o noatime /dev/mapper/data {TOP} && "
               f"install -d -o games {OTHER} && echo kept > {TOP}/kept && sync -f {TOP}")  # fmt: skip
        yield one
    lab.reset()


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    """Each test ends with a node as it was; the disk of the system has not grown."""
    before, root = bench.snapshot()
    yield
    bench.sh(f"rm -f {OTHER}/*; systemctl stop space-holder", check=False)
    until(
        "all is over",
        lambda: all(i.state == "recovered" for i in bench.agent.recover(everything=True).injections),
        60,
    )
    # An agent that has just started tries its probes on devices of its own.
    until("nothing is left", lambda: bench.agent.residue() == (), 120)
    assert bench.user_writes() == ""
    after, root_after = bench.snapshot()
    assert after == before
    assert root - root_after < 20_000, "logs grow, but the fault is not there"


def test_full_at_once(bench: Bench) -> None:
    free = bench.free("avail")
    view = bench.inject("disk_full")
    path = f"{TOP}/app-debug.log.groundfault-{view.id}"
    left = bench.free("avail")
    assert (left, bench.sh(f"df --output=pcent {TOP} | tail -1")) == (0 if bench.kind == "ext4" else left, "100%")
    assert left < 64, "KiB: XFS keeps a little that it gives to nobody"
    assert "No space left on device" in bench.user_writes()
    assert bench.sh(f"stat -c %U {path}") == "nobody"
    assert int(bench.sh(f"du -k {path}").split()[0]) > free * 0.95, "du finds it"
    if bench.kind == "ext4":
        kept = int(
            bench.sh("dumpe2fs -h /dev/mapper/data 2>/dev/null | awk '/^Reserved block count/ { print $4 }'")
        )
        assert bench.says(f"dd if=/dev/zero of={TOP}/root bs=1M count={kept // 512} && rm {TOP}/root") == "", (
            "half of what is kept for root"
        )
    assert (
        bench.says("runuser -u games -- dd if=/dev/zero of=/tmp/neighbour bs=4k count=1 && rm /tmp/neighbour")
        == ""
    )
    now = bench.look(view)
    assert now.evidence is not None
    assert (now.evidence.armed, now.evidence.hits) == (True, 0)
    assert now.evidence.counters["available_bytes"] < 64 << 10
    assert bench.sh("ls /run/groundfault | grep groundfault-") == f"groundfault-{view.id}"

    reader = bench.sh(f"exec 3< {path}; sleep 1000 < /dev/null > /dev/null 2>&1 & echo $!")
    ended = bench.recover(view)
    assert (ended.state, ended.data_lost) == ("recovered", ())
    assert bench.free("avail") >= free - 64, "also while somebody still has the file open"
    bench.sh(f"kill {reader}")


@ext4_only
def test_full_but_for_some(bench: Bench) -> None:
    view = bench.inject("disk_full", leave_mib=16, folder=OTHER, owner="daemon")
    assert 12 * 1024 <= bench.free("avail") <= 16 * 1024
    assert bench.user_writes() == ""
    assert bench.sh(f"stat -c %U {OTHER}/app-debug.log.*") == "daemon"
    bench.sh(f"truncate -s 20M {OTHER}/app-debug.log.groundfault-{view.id}")
    now = bench.look(view)
    assert now.evidence is not None and not now.evidence.armed
    assert "somebody has freed space meanwhile; it is not taken again" in now.evidence.notes
    assert bench.recover(view).state == "recovered"


def test_a_file_that_grows(bench: Bench) -> None:
    room = bench.free("avail")
    bench.sh(f"fallocate -l {room - 60_000}K {OTHER}/mine")
    view = bench.inject("disk_full", grow_mib_s=16)
    path = f"{TOP}/app-debug.log.groundfault-{view.id}"
    assert view.evidence is not None and "it is still growing" in view.evidence.notes
    until("it is full", lambda: bench.counters(view)["available_bytes"] < 1 << 20, 60)
    until("a user is told so", lambda: "No space left on device" in bench.user_writes(), 20)
    assert bench.sh(f"head -1 {path} | cut -d: -f1") == "worker"
    bench.sh(f"truncate -s -8M {OTHER}/mine")
    until("what was freed is taken again", lambda: bench.free("avail") < 1024, 60)
    (pid,) = bench.sh(f"cat /sys/fs/cgroup/groundfault-{view.id}/cgroup.procs").split()
    assert bench.sh(f"stat -c %U /proc/{pid}") == "nobody"
    bench.kill_the_agent()
    ended = bench.look(view)
    assert (ended.state, ended.reason) == ("recovered", "restart")
    assert bench.says(f"ls {path} /proc/{pid}").count("No such file") == 2
    bench.sh(f"rm {OTHER}/mine")


def test_no_inodes(bench: Bench) -> None:
    free, used = bench.free("iavail"), bench.free("iused")
    view = bench.inject("inodes_full")
    path = f"{TOP}/sessions.groundfault-{view.id}"
    assert bench.free("iavail") == 0 and bench.free("avail") > 100_000
    assert "No space left on device" in bench.says(f"touch {TOP}/new")
    assert "No space left on device" in bench.says(f"runuser -u games -- mkdir {OTHER}/new")
    assert bench.says(f"echo more >> {TOP}/kept && echo kept > {TOP}/kept") == "", "what is there can grow"
    assert bench.sh(f"stat -c %U {path} {path}/00000000").split() == ["nobody", "nobody"]
    assert int(bench.sh(f"ls {path} | wc -l")) >= free - 64
    assert bench.recover(view).state == "recovered"
    assert (bench.free("iused"), bench.says(f"ls {path}").count("No such file")) == (used, 1)


@pytest.mark.thorough
@ext4_only
def test_both_while_the_agent_is_killed(bench: Bench) -> None:
    used = bench.free("iused")
    files = bench.inject("inodes_full", leave=100)
    assert 0 < bench.free("iavail") <= 100
    space = bench.inject("disk_full")
    assert "No space left on device" in bench.user_writes()
    bench.kill_the_agent()
    assert {bench.look(view).reason for view in (files, space)} == {"restart"}
    assert {bench.look(view).state for view in (files, space)} == {"recovered"}
    assert bench.free("iused") == used


@pytest.mark.thorough
@ext4_only
def test_unmounted_while_it_stands(bench: Bench) -> None:
    """The file cannot be removed until it is mounted again, which the recovery sees to; nobody says it is gone."""
    view = bench.inject("disk_full")
    path = f"{TOP}/app-debug.log.groundfault-{view.id}"
    bench.sh(f"umount {TOP}")
    stuck = bench.recover(view)
    assert stuck.state == "stuck" and f"{path} is still there" in stuck.residue
    until("it is tried again", lambda: bench.look(view).state == "recovered", 60)
    assert "No such file" in bench.says(f"ls {path}")


def holder(bench: Bench) -> str:
    """A service that has a file open; its process id."""
    bench.sh(f"systemd-run --quiet --unit=space-holder sh -c 'exec 3>>{TOP}/kept; exec sleep 10000'")
    pid = bench.sh("systemctl show --property=MainPID --value space-holder")
    until("it has", lambda: bench.sh(f"readlink /proc/{pid}/fd/3", check=False) == f"{TOP}/kept", 30)
    return pid


def stopped(bench: Bench, **parameters: Any) -> tuple[InjectionView, str, str]:
    """Written to, used by a service, then stopped: the injection, the service, the sum of what was written."""
    bench.sh(f"head -c 3000000 /dev/urandom > {OTHER}/dirty")
    total = bench.sh(f"md5sum {OTHER}/dirty")
    pid = holder(bench)
    view = bench.inject("readonly_remount", **parameters)
    assert view.evidence is not None and view.evidence.log
    assert view.evidence.signs and all(sign.seen for sign in view.evidence.signs), view.evidence
    told = bench.says(f"touch {TOP}/new")
    assert "Input/output error" in told or "Read-only file system" in told
    assert bench.user_writes() != "" and bench.sh(f"kill -0 {pid} && echo lives") == "lives"
    assert "rw" in bench.sh(f"findmnt -no OPTIONS {TOP}").split(","), "what /proc/mounts goes on to say"
    assert bench.says("touch /tmp/neighbour && rm /tmp/neighbour") == ""
    return view, pid, total


def brought_back(bench: Bench, ended: InjectionView, pid: str, total: str) -> None:
    assert (ended.state, ended.data_lost) == ("recovered", ())
    assert bench.sh(f"md5sum {OTHER}/dirty") == total, "all that was written before is there"
    again = bench.sh("systemctl show --property=MainPID --value space-holder")
    assert again not in ("0", pid), "the service was started again"
    if bench.kind == "ext4":
        assert bench.sh("cat /sys/fs/ext4/dm-0/errors_count") == "0"
        header = bench.sh("dumpe2fs -h /dev/mapper/data 2>/dev/null")
        assert "Filesystem state:         clean\n" in header and "FS Error count" not in header
    bench.sh(f"systemctl stop space-holder; rm {OTHER}/dirty")


@contextmanager
def drop_in(bench: Bench, option: str) -> Iterator[None]:
    """An agent that starts meanwhile has this option of its unit."""
    folder = "/run/systemd/system/groundfault-agent.service.d"
    bench.sh(f"mkdir -p {folder}; printf '[Service]\\n{option}\\n' > {folder}/test.conf; systemctl daemon-reload")
    try:
        yield
    finally:
        bench.sh(f"rm {folder}/test.conf; systemctl daemon-reload")


@ext4_only
def test_an_error_turns_it_read_only(bench: Bench) -> None:
    """And the agent is killed while it stands. Its unit gives the next one mounts of its own: what that mends has
    to be mended for everybody.
    """
    view, pid, total = stopped(bench)
    assert "groundfault" not in bench.sh("dmesg | grep 'EXT4-fs error' | tail -n 1")
    assert bench.sh("cat /sys/fs/ext4/dm-0/errors_count") == "1"
    assert "clean with errors" in bench.sh("dumpe2fs -h /dev/mapper/data 2>/dev/null | grep state")
    with drop_in(bench, "PrivateMounts=yes"):
        bench.kill_the_agent()
    ended = bench.look(view)
    assert ended.reason == "restart"
    brought_back(bench, ended, pid, total)
    left = "left the mount namespace that the unit had made"
    assert left in bench.sh("journalctl -b -u groundfault-agent -n 200 --no-pager")


def test_it_shuts_down(bench: Bench) -> None:
    if bench.kind == "xfs":
        assert bench.refused("readonly_remount", mode="error") == "mode: shutdown, for it"
    view, pid, total = stopped(bench, mode="shutdown")
    brought_back(bench, bench.recover(view), pid, total)


def test_what_is_lost_is_accepted_and_told(bench: Bench) -> None:
    assert "--accept-data-loss" in bench.refused("readonly_remount", loses="log")
    bench.sh(f"sync -f {TOP}; echo gone > {OTHER}/unwritten")
    view = bench.inject("readonly_remount", loses="log", accept_data_loss=True)
    ended = bench.recover(view)
    assert ended.state == "recovered" and any("not yet on the disk when" in line for line in ended.data_lost)
    found = bench.sh(f"cat {OTHER}/unwritten", check=False)
    assert found != "gone", "it was lost indeed"
    bench.sh(f"rm -f {OTHER}/unwritten")


@ext4_only
def test_refused(bench: Bench) -> None:
    assert bench.refused("disk_full", disk="/").startswith("disk: ")
    assert bench.refused("disk_full", owner="root").startswith("owner: ")
    assert bench.refused("disk_full", owner="no-such-user").startswith("owner: ")
    assert bench.refused("inodes_full", folder="/tmp").startswith("folder: ")
    bench.sh(f"mount -o remount,ro {TOP}")
    for fault in ("disk_full", "inodes_full", "readonly_remount"):
        assert bench.refused(fault).startswith("disk: ")
    bench.sh(f"mount -o remount,rw {TOP}; umount {TOP}")
    for fault in ("disk_full", "inodes_full", "readonly_remount"):
        assert bench.refused(fault, disk="data").startswith("disk: ")
    bench.sh(f"mount -o noatime /dev/mapper/data {TOP}")
    assert bench.agent.list().injections == ()
