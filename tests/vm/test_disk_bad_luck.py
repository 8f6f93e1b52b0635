"""What can go wrong around disk faults, on a real kernel: I/O in flight, kills, moves, a reboot, a huge table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabctlError
from labctl.progress import PlainProgress
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh, thorough
from tests.user import until
from tests.vm.disk_meter import install, load, start
from tests.vm.disks import TOP, Bench, disk_bench, left_as_it_was

pytestmark = pytest.mark.vm

BLOCK = 4096
DEVICE = "/dev/mapper/data"
FILE = f"{TOP}/victim"
SWAPS = Path(__file__).with_name("swap_driver.py")
MANY = Path(__file__).with_name("many_ranges_driver.py")
RANGES, FIRST, STEP = 10_000, 2_097_152, 838_000
"""Bad ranges of a disk of 4 TiB: from 1 GiB on, so far from one to the next that they spread over all of it."""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w2") as one:
        install(one)
        yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    bench.sh(f"head -c 1048576 /dev/urandom > {FILE}; sync -f {TOP}")
    with left_as_it_was(bench):
        yield


def offset(view: InjectionView) -> int:
    match = re.search(r"at byte (\d+)", view.target)
    assert match, view.target
    return int(match[1])


def read(path: str, at: int = 0) -> str:
    return f"dd if={path} iflag=direct bs={BLOCK} skip={at // BLOCK} count=1 status=none of=/dev/null"


def in_flight(bench: Bench) -> int:
    return sum(int(word) for word in bench.sh("cat /sys/block/dm-0/inflight").split())


def test_tables_are_swapped_while_a_thousand_ios_are_in_flight(bench: Bench) -> None:
    """The file system is mounted and busy all the while; each I/O is compared, and none fails.

    The virtual SCSI disk of QEMU 7.2 forgets requests where its queue of 128 is full: it gets fewer.
    """
    depth = "/sys/block/sda/device/queue_depth"
    usual = bench.sh(f"cat {depth}; echo 32 > {depth}")
    slow = bench.inject("disk_slow", read_ms=1000, write_ms=1000)
    with load(bench, f"{TOP}/load", 1200) as counted:
        busy = partial(until, "a thousand are in flight", lambda: in_flight(bench) >= 1000)
        busy()
        bad = bench.inject("latent_sector_error", file=FILE, backend="dm")
        assert "Input/output error" in bench.says(read(FILE, offset(bad)))
        busy()
        slower = bench.inject("disk_slow", read_ms=500, write_ms=500)
        busy()
        bench.recover(slow)
        busy()
        bench.recover(bad)
        assert bench.says(read(FILE, offset(bad))) == ""
        busy()
    bench.recover(slower)
    bench.sh(f"echo {usual} > {depth}")
    (sum_of_all,) = counted
    assert (sum_of_all.failed, sum_of_all.wrong) == (0, 0) and sum_of_all.done > 5000, sum_of_all


@pytest.mark.thorough
def test_a_suspend_that_never_completes(bench: Bench) -> None:
    """A second fault cannot get its table in, because I/O hangs: it is refused, and nothing of it stays."""
    hang = bench.inject("disk_hang", what="reads")
    with start(bench, f"{read(DEVICE)} && echo read") as reader:
        until("it hangs", lambda: in_flight(bench) >= 1)
        before = bench.tables()
        began = float(bench.sh("cut -d' ' -f1 /proc/uptime"))
        with pytest.raises(LabctlError, match="I/O in flight"):
            bench.agent.apply("never", "disk_slow", {"read_ms": 5}, 600)
        took = float(bench.sh("cut -d' ' -f1 /proc/uptime")) - began
        assert 9 < took < 30, took
        assert bench.tables() == before and "SUSPENDED" not in bench.sh("dmsetup info")
        assert bench.look(hang).state == "active" and reader.poll() is None
        bench.recover(hang)
        assert reader.communicate(timeout=60)[0] == "read\n"


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["latent_sector_error", "disk_gone"])
def test_a_fault_on_a_disk_that_another_one_made_disappear(bench: Bench, first: str) -> None:
    bad = bench.inject("latent_sector_error", file=FILE, backend="dm")
    gone = bench.inject("disk_gone")
    assert "Input/output error" in bench.says(read(FILE))
    both = {"latent_sector_error": bad, "disk_gone": gone}
    one = both.pop(first)
    (other,) = both.values()
    bench.recover(one)
    assert bench.look(other).state == "active"
    if first == "disk_gone":
        assert "Input/output error" in bench.says(read(DEVICE, _sector(bad) * 512))
        assert bench.says(read(DEVICE, _sector(bad) * 512 + BLOCK)) == ""
    else:
        assert "Input/output error" in bench.says(read(DEVICE, _sector(bad) * 512 + BLOCK))
    bench.recover(other)
    assert bench.says(f"cat {FILE} > /dev/null") == ""


def _sector(view: InjectionView) -> int:
    match = re.search(r"sector (\d+)\+", view.target)
    assert match, view.target
    return int(match[1])


@pytest.mark.thorough
def test_the_agent_is_killed_at_random_moments_of_swaps(bench: Bench) -> None:
    bench.sh(f"systemctl stop groundfault-agent; cat > /tmp/swaps.py <<'END'\n{SWAPS.read_text()}\nEND")
    try:
        with load(bench, f"{TOP}/load", 4) as counted:
            out = ssh(bench.node, f"python3 /tmp/swaps.py 11 10 {FILE}", timeout=500, check=False)
    finally:
        bench.sh("systemctl start groundfault-agent")
        bench.lab.ready(bench.node)
    lives = [json.loads(line) for line in out.stdout.splitlines()]
    assert out.returncode == 0 and len(lives) == 10, out.stdout + out.stderr
    assert [x for x in lives if x["residue"] or x["suspended"] or set(x["states"]) - {"recovered"}] == []
    assert sum(bool(x["states"]) for x in lives) >= 5, "most kills came after the first record"
    assert (counted[0].failed, counted[0].wrong) == (0, 0) and counted[0].done > 100
    assert bench.says(f"cat {FILE} > /dev/null") == ""


MOVES = {
    "truncated": (f"truncate -s 0 {FILE} && head -c 1048576 /dev/zero > {FILE}", "no longer maps to"),
    "renamed": (f"mv {FILE} {FILE}.old", "is gone; its sectors stay bad"),
    "reallocated": (f"fallocate --insert-range --offset 0 --length {BLOCK} {FILE}", "no longer maps to"),
}  # fmt: skip


@pytest.mark.parametrize("move", ["reallocated", *thorough("truncated", "renamed")])
def test_a_file_that_moves_while_its_sectors_are_bad(bench: Bench, move: str) -> None:
    view = bench.inject("latent_sector_error", file=FILE, backend="dm", permanent=True)
    at, place = offset(view), _sector(view) * 512
    script, note = MOVES[move]
    bench.sh(f"{script}; sync -f {TOP}")
    found = bench.evidence(view)
    assert found.armed and any(note in line for line in found.notes), found.notes
    assert "Input/output error" in bench.says(read(DEVICE, place)), "the place stays bad"
    if move == "renamed":
        assert "Input/output error" in bench.says(read(f"{FILE}.old", at))
    else:
        assert bench.says(read(FILE, at)) == "", "the file lies elsewhere"
    bench.recover(view)
    assert bench.says(read(DEVICE, place)) == ""
    bench.sh(f"rm -f {FILE}.old; sync -f {TOP}")


@pytest.mark.thorough
def test_discards_over_bad_sectors(bench: Bench) -> None:
    """The disk takes none while the fault stands, so none can reach past it; before and after it does."""
    assert bench.says(f"fstrim {TOP}") == ""
    view = bench.inject("latent_sector_error", file=FILE, backend="dm")
    at, place = offset(view), _sector(view) * 512
    assert bench.says(read(FILE, at))
    bench.says(f"fstrim {TOP}")
    bench.says(f"blkdiscard --force --offset {place} --length {BLOCK} {DEVICE}")
    assert "Input/output error" in bench.says(read(FILE, at)), "a discard heals nothing"
    assert bench.evidence(view).armed
    bench.sh(f"rm {FILE}; sync -f {TOP}")
    bench.says(f"fstrim {TOP}")
    bench.recover(view)
    assert bench.says(f"fstrim {TOP}") == "" and bench.says(read(DEVICE, place)) == ""


@pytest.mark.thorough
def test_ten_thousand_bad_ranges_of_four_tebibytes(bench: Bench) -> None:
    bench.sh("truncate -s 4T /var/tmp/huge; loop=$(losetup -f --show --direct-io=on /var/tmp/huge); "
             "dmsetup create huge --table \"0 $(blockdev --getsz $loop) linear $loop 0\"")  # fmt: skip
    before = bench.sh("dmsetup table huge")
    bench.sh(f"cat > /tmp/many.py <<'END'\n{MANY.read_text()}\nEND")
    try:
        with load(bench, "/dev/mapper/huge", 8) as counted:
            with start(bench, f"python3 /tmp/many.py huge {RANGES} {FIRST} {STEP}") as driver:
                assert driver.stdin is not None and driver.stdout is not None
                planted = json.loads(driver.stdout.readline() or driver.communicate()[1])
                assert planted["lines"] == 2 * RANGES + 1
                assert sum(planted["took_s"].values()) < 120 and planted["took_s"]["dm_overlay"] < 40, planted
                assert planted["kernel_mib"] < 150 and planted["agent_mib"] < 400, planted
                for number in (0, 1, RANGES // 2, RANGES - 1):
                    place = (FIRST + number * STEP) * 512
                    assert "Input/output error" in bench.says(read("/dev/mapper/huge", place))
                    assert bench.says(read("/dev/mapper/huge", place - BLOCK)) == ""
                    assert bench.says(read("/dev/mapper/huge", place + BLOCK)) == ""
                ended = json.loads(driver.communicate("end\n", timeout=180)[0])
        assert ended["left"] == [] and ended["took_s"] < 60, ended
        assert (counted[0].failed, counted[0].wrong) == (0, 0) and counted[0].done > 100
        assert bench.sh("dmsetup table huge") == before
    finally:
        bench.sh("dmsetup remove --retry huge; losetup -d $(losetup -j /var/tmp/huge | cut -d: -f1); "
                 "rm /var/tmp/huge")  # fmt: skip


STANDING: dict[str, dict[str, Any]] = {
    "write_error": {"file": f"{TOP}/file-1"},
    "torn_write": {"file": f"{TOP}/file-2", "accept_data_loss": True},
    "misdirected_write": {"file": f"{TOP}/file-3", "accept_data_loss": True},
    "silent_corruption": {"file": f"{TOP}/file-4"},
    "latent_sector_error": {"file": f"{TOP}/file-5", "backend": "dm"},
    "disk_full": {},
    "disk_slow": {"read_ms": 5, "write_ms": 5},
    "disk_hang": {},
}


@pytest.mark.thorough
def test_a_reboot_while_many_faults_stand(bench: Bench) -> None:
    """As many as stand together; power goes at once, and the disk is as it was, but for what was accepted."""
    bench.sh(f"for n in 1 2 3 4 5; do head -c 262144 /dev/urandom > {TOP}/file-$n; done; sync -f {TOP}")
    kept = bench.sh(f"sha256sum {TOP}/file-* {FILE}")
    tables = bench.tables()
    for fault, parameters in STANDING.items():
        bench.inject(fault, **parameters)
    names = tuple(bench.mine)
    bench.lab.provider.power_off(bench.node.name)
    bench.lab.provider.power_on(bench.node.name, PlainProgress())
    bench.lab.ready(bench.node)
    ended = bench.agent.list(ids=names, ended=True).injections
    assert {(i.state, i.reason) for i in ended} == {("recovered", "restart")} and len(ended) == len(names), ended
    assert bench.tables() == tables
    assert bench.sh(f"sha256sum {TOP}/file-* {FILE}") == kept
    assert bench.sh(f"ls {TOP} | grep -c groundfault", check=False) == "0"
    assert int(bench.sh(f"df --output=avail {TOP} | tail -1")) > 300_000
    assert bench.sh("cat /sys/fs/ext4/dm-0/errors_count") == "0"
    bench.sh(f"rm {TOP}/file-*; sync -f {TOP}")
    install(bench)
