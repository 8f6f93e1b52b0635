"""disk_slow, disk_hang and disk_gone on a real kernel: how long I/O takes, by a meter that is not the agent's."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.disk_meter import install, start, times, usual
from tests.vm.disks import TOP, Bench, disk_bench, left_as_it_was

pytestmark = pytest.mark.vm

DEVICE = "/dev/mapper/data"
FILE = f"{TOP}/measured"
OTHER = "/var/tmp/measured"  # on the disk of the system
TICK_MS = 5
"""Timers of these kernels go by jiffies of 4 ms."""
NOISE_MS = 25
"""What an emulated machine that shares its CPUs adds to the quicker ones of its I/Os at most."""
UNIT = "holds-a-file"
HUNG_AFTER = "/proc/sys/kernel/hung_task_timeout_secs"
ERRORS = "I/O error|EXT4-fs error|Buffer I/O|blocked for more"


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w2") as one:
        install(one)
        one.sh(f"head -c 1048576 /dev/urandom | tee {FILE} > {OTHER}; sync {FILE} {OTHER}")
        yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    with left_as_it_was(bench):
        yield


def takes(ms: float, found: float) -> bool:
    """Whether a measured time is what it was without a fault and `ms` more."""
    return ms - TICK_MS <= found <= ms * 1.2 + NOISE_MS


def test_reads_writes_and_flushes_each_take_their_time(bench: Bench) -> None:
    mark, await_before = bench.log_mark(), stat(bench)
    view = bench.inject("disk_slow", read_ms=60, write_ms=120, flush_ms=240)
    read, write = usual(bench, "r", FILE), usual(bench, "w", FILE)
    flush = usual(bench, "f", FILE, 5)
    assert takes(60, read) and takes(120, write) and takes(120 + 240, flush), (read, write, flush)
    assert usual(bench, "r", OTHER) < 30 and usual(bench, "w", OTHER) < 30, "another disk is as fast as ever"
    reads, read_ms, writes, write_ms = (b - a for a, b in zip(await_before, stat(bench), strict=True))
    assert reads >= 15 and 60 - TICK_MS <= read_ms / reads < 120, "await, as iostat makes it: a mean"
    assert writes >= 20 and write_ms / writes >= 120 - TICK_MS
    found = bench.evidence(view)
    assert found.counters["late_reads"] >= 15 and found.counters["late_writes"] >= 20
    assert bench.seen(view) == [True, True]
    bench.recover(view)
    assert usual(bench, "r", FILE) < 30 and usual(bench, "w", FILE) < 30 and usual(bench, "f", FILE, 5) < 60
    assert bench.logged(mark, ERRORS) == []


def stat(bench: Bench) -> list[int]:
    """Reads, their milliseconds, writes, theirs: of the disk that is used (Documentation/block/stat.rst)."""
    words = bench.sh("cat /sys/block/dm-0/stat").split()
    return [int(words[n]) for n in (0, 3, 4, 7)]


def test_writes_alone(bench: Bench) -> None:
    before = usual(bench, "r", FILE, 40)
    view = bench.inject("disk_slow", read_ms=0, write_ms=25, flush_ms=25)
    read, write = usual(bench, "r", FILE, 40), usual(bench, "w", FILE, 40)
    assert read < before * 1.5 + 2, "reads are as they were"
    assert takes(25, write) and write > read + 15, (read, write)
    assert bench.evidence(view).counters["late_writes"] >= 40
    bench.recover(view)


def test_places_of_a_file_are_slow_and_the_rest_is_not(bench: Bench) -> None:
    view = bench.inject("disk_slow", file=FILE, read_ms=150, write_ms=0)
    assert takes(150, usual(bench, "r", FILE, 5))
    assert usual(bench, "w", FILE, 5) < 50
    bench.sh(f"cp {FILE} {TOP}/neighbour; sync {TOP}/neighbour")
    assert usual(bench, "r", f"{TOP}/neighbour", 5) < 50
    bench.sh(f"rm {TOP}/neighbour")
    bench.recover(view)


def test_jitter_and_stalls_are_of_the_place(bench: Bench) -> None:
    """32 places of the disk, read twice, and with the same seed and with another. Eight delays, 34 ms apart."""
    jitter = {"read_ms": 150, "write_ms": 0, "jitter_percent": 80, "stall_percent": 12, "stall_ms": 900}

    def read(seed: int, rounds: int = 1) -> list[list[float]]:
        view = bench.inject("disk_slow", seed=seed, **jitter)
        found = [times(bench, "r", DEVICE, step=16 << 20, count=32) for _ in range(rounds)]
        bench.recover(view)
        return found

    first, second = read(7, 2)
    (again,), (other,) = read(7), read(8)
    for same in (second, again):
        assert differing(first, same) <= 6, list(zip(first, same, strict=True))
    assert differing(first, other) >= 12
    stalled, passed = [ms for ms in first if ms > 600], sorted(ms for ms in first if ms <= 600)
    assert 1 <= len(stalled) <= 10 and takes(900, statistics.median(stalled)), stalled
    assert takes(30, passed[0]) and 230 < passed[-1] < 330, "from a fifth to nearly twice as much"


def differing(one: list[float], two: list[float]) -> int:
    """At how many places the times are not the same, but for what the machine adds now and then."""
    return sum(abs(a - b) > 25 for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("used", [False, True], ids=["controller off", "controller in use"])
def test_a_cap_on_throughput(bench: Bench, used: bool) -> None:
    root, group = "/sys/fs/cgroup", "/sys/fs/cgroup/system.slice"
    other = bench.sh("cat /sys/block/vda/dev")
    number = bench.sh("cat /sys/block/dm-0/dev")
    limits = f"head -n 99 {root}/cgroup.subtree_control {root}/*/io.max"
    if used:
        bench.sh(f"echo +io > {root}/cgroup.subtree_control; echo '{other} riops=50000' > {group}/io.max; "
                 f"echo '{number} wbps=99000000 riops=40000' > {group}/io.max")  # fmt: skip
    before = bench.sh(limits, check=False)
    view = bench.inject("disk_slow", read_ms=0, write_ms=0, read_mib_s=4, write_mib_s=2)
    write = rate(bench, f"dd if=/dev/zero of={TOP}/capped bs=256k count=24 oflag=direct")
    buffered = rate(bench, f"dd if=/dev/zero of={TOP}/capped bs=256k count=16 conv=fsync")
    read = rate(bench, f"dd if={TOP}/capped of=/dev/null bs=256k count=16 iflag=direct")
    assert 1.7 < write < 2.3 and 1.6 < buffered < 2.4 and 3.2 < read < 4.6, (write, buffered, read)
    assert rate(bench, "dd if=/dev/vda of=/dev/null bs=256k count=32 iflag=direct") > 10, "another disk"
    assert bench.evidence(view).counters["capped_control_groups"] >= 2
    bench.recover(view)
    assert bench.sh(limits, check=False) == before
    assert rate(bench, f"dd if=/dev/zero of={TOP}/capped bs=256k count=24 oflag=direct") > 8
    bench.sh(f"rm {TOP}/capped")
    if used:
        bench.sh(f"for n in {other} {number}; do echo $n riops=max wbps=max > {group}/io.max; done; "
                 f"echo -io > {root}/cgroup.subtree_control")  # fmt: skip


def rate(bench: Bench, dd: str) -> float:
    """MiB a second, as dd says."""
    match = re.search(r"(\d+) bytes .* copied, ([\d.e+-]+) s", bench.sh(f"{dd} 2>&1"))
    assert match
    return int(match[1]) / float(match[2]) / (1 << 20)


READ_ONE = f"dd if={FILE} iflag=direct bs=4096 count=1 skip=3 status=none | sha256sum"
DOOMED = "/tmp/doomed"


def hanging(bench: Bench, program: str) -> int:
    """How many processes of a program are in state D."""
    return int(bench.sh(f"ps -o stat= -C {program} | grep -c ^D", check=False))


def test_reads_and_writes_hang_and_go_on_with_the_right_data(bench: Bench) -> None:
    right = bench.sh(READ_ONE)
    bench.sh(f"cp $(which dd) {DOOMED}; echo old > {TOP}/hung; sync -f {TOP}")
    write = f"echo new | dd of={TOP}/hung conv=notrunc,fsync status=none && echo done"
    mark = bench.log_mark()
    view = bench.inject("disk_hang")
    patience = bench.sh(f"cat {HUNG_AFTER}; echo 2 > {HUNG_AFTER}; echo 10 > /proc/sys/kernel/hung_task_warnings")
    with ExitStack() as all_of_them:
        reader, writer, doomed = (
            all_of_them.enter_context(start(bench, script))
            for script in (READ_ONE, write, f"{DOOMED} if={FILE} iflag=direct count=8 of=/dev/null; echo killed")
        )
        until("two hang", lambda: hanging(bench, "dd") == 2 and hanging(bench, "doomed") == 1)
        until("the kernel says so", lambda: bool(bench.logged(mark, "task (dd|doomed):.* blocked for more than")))
        found = bench.evidence(view)
        assert found.counters["hanging_now"] >= 3 and bench.seen(view) == [True]
        assert usual(bench, "r", OTHER, 5) < 50, "another disk goes on"
        bench.sh("pkill -KILL -x doomed")
        assert hanging(bench, "doomed") == 1 and reader.poll() is writer.poll() is None, "no signal ends it"
        bench.sh(f"echo {patience} > {HUNG_AFTER}")
        bench.recover(view)
        said = [one.communicate(timeout=60)[0].strip() for one in (reader, writer, doomed)]
    assert said == [right, "done", "killed"] and bench.sh(f"cat {TOP}/hung") == "new"
    bench.sh(f"rm {TOP}/hung")
    assert bench.logged(mark, "I/O error|EXT4-fs error") == []


@pytest.mark.thorough
def test_reads_and_writes_hang_apart_and_end_by_themselves(bench: Bench) -> None:
    view = bench.inject("disk_hang", what="reads", seconds=4)
    assert usual(bench, "w", FILE, 3) < 200
    (read,) = times(bench, "r", FILE)
    assert takes(4000, read), "each I/O is let go after so many seconds"
    assert bench.look(view).state == "active"
    bench.recover(view)
    view = bench.inject("disk_hang", what="writes")
    assert usual(bench, "r", FILE, 3) < 200
    with start(
        bench, f"dd if=/dev/zero of={TOP}/late bs=4096 count=1 oflag=direct 2>/dev/null; echo done"
    ) as writer:
        until("the writer hangs", lambda: hanging(bench, "dd") == 1)
        bench.recover(view)
        assert writer.communicate(timeout=60)[0] == "done\n"
    bench.sh(f"rm {TOP}/late")


@pytest.mark.thorough
def test_the_agent_is_killed_while_a_disk_hangs(bench: Bench) -> None:
    right = bench.sh(READ_ONE)
    view = bench.inject("disk_hang")
    with start(bench, READ_ONE) as reader:
        until("the reader hangs", lambda: hanging(bench, "dd") == 1)
        bench.sh("systemctl kill --signal=KILL groundfault-agent")
        assert reader.communicate(timeout=120)[0].strip() == right, "the next agent lets it go"
    bench.lab.ready(bench.node)
    ended = bench.look(view)
    assert (ended.state, ended.reason) == ("recovered", "restart")


@pytest.mark.parametrize("backend", ["scsi", "dm"])
def test_a_disk_is_gone_and_comes_back(bench: Bench, backend: str) -> None:
    bench.sh(f"systemd-run --quiet --unit={UNIT} sh -c 'exec 3>>{TOP}/held; exec sleep 10000'; sync -f {TOP}")
    pid = main_pid(bench)
    until("it holds the file", lambda: bench.sh(f"readlink /proc/{pid}/fd/3", check=False) == f"{TOP}/held")
    right, options = bench.sh(READ_ONE), bench.sh(f"findmnt -no OPTIONS {TOP}")
    mark = bench.log_mark()
    view = bench.inject("disk_gone", backend=backend)
    assert "Input/output error" in bench.says(f"dd if={FILE} iflag=direct bs=4096 count=1 of=/dev/null")
    assert "Input/output error" in bench.says(f"dd if={DEVICE} iflag=direct bs=4096 count=1 of=/dev/null")
    bench.says(f"echo lost > {TOP}/new; sync -f {TOP}")
    until("the file system has stopped", lambda: bench.says(f"echo lost > {TOP}/newer; sync {TOP}/newer") != "")
    lines = {"scsi": "rejecting I/O to offline device|device offline error", "dm": "I/O error, dev loop"}
    assert bench.logged(mark, lines[backend]) and bench.logged(mark, "EXT4-fs.*(error|Remounting|shut)")
    assert bench.seen(view) == [True, True]
    assert bench.evidence(view).hits >= 2
    assert usual(bench, "r", OTHER, 3) < 50
    ended = bench.recover(view)
    assert ended.state == "recovered"
    assert bench.sh(READ_ONE) == right and bench.sh(f"findmnt -no OPTIONS {TOP}") == options
    until("its service is back", lambda: main_pid(bench) not in ("0", pid))
    bench.sh(f"systemctl stop {UNIT}; rm -f {TOP}/held {TOP}/new {TOP}/newer; sync -f {TOP}")


def main_pid(bench: Bench) -> str:
    return bench.sh(f"systemctl show --property=MainPID --value {UNIT}")
