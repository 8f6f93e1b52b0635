"""memory_pressure, oom_kill, swap_thrash and memory_poison on a real kernel.

What they do is read from the files of control groups, /proc, the kernel's log and the victims' own counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.disks import TOP, Bench, disk_bench
from tests.vm.services import GROUPS, beats, becomes, main_pid, services, show

pytestmark = pytest.mark.vm

PROGRAM = "/run/memory_victim.py"
MIB = 24
VICTIM = f"exec python3 {PROGRAM} $0 {MIB} 0"
FAMILY = f"exec python3 {PROGRAM} $0 {MIB} 2"
GROUP, OTHER = f"{GROUPS}/victim.service", f"{GROUPS}/neighbour.service"


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w3") as one:
        text = Path(__file__).with_name("memory_victim.py").read_text()
        one.sh(f"cat > {PROGRAM} <<'END'\n{text}\nEND\n")
        with services(one, neighbour=("", f"exec python3 {PROGRAM} $0 8 0")):
            runs(one, "neighbour")
            yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    """Whatever a test did, its neighbour has run all the time and has lost nothing; there is no residue."""
    before = show(bench, "neighbour", "MainPID", "NRestarts", "InvocationID")
    bench.mine.clear()
    bench.sh("rm -f /run/victim*.count")  # of the test before: a victim that has counted has all its memory
    yield
    bench.recover_all()
    until("nothing is left", lambda: bench.agent.residue() == (), 30)
    assert show(bench, "neighbour", "MainPID", "NRestarts", "InvocationID") == before
    at_rest = f"cat {OTHER}/memory.swap.current; sed -n 's/^high //p; s/^oom_kill //p' {OTHER}/memory.events"
    assert bench.sh(at_rest).split() == ["0", "0", "0"]
    assert "0 kB" in bench.sh("grep HardwareCorrupted /proc/meminfo")


def runs(bench: Bench, name: str) -> None:
    """Wait until a victim has all its memory: python takes seconds to start here."""
    until(f"{name} runs", lambda: bench.sh(f"cat /run/{name}.count", check=False) not in ("", "0"), 90)


def number(bench: Bench, command: str) -> int:
    return int(bench.sh(command))


def waited(bench: Bench, group: str) -> int:
    """Microseconds that something in it waited for memory."""
    return number(bench, f"sed -n 's/^some.*total=//p' {group}/memory.pressure")


def test_a_unit_is_short_of_memory(bench: Bench) -> None:
    with services(bench, victim=("MemoryHigh=600M", VICTIM)):
        runs(bench, "victim")
        before = [waited(bench, g) for g in (GROUP, OTHER)]
        free = number(bench, "awk '/MemAvailable/ {print $2}' /proc/meminfo")
        view = bench.inject("memory_pressure", unit="victim", percent=80)
        slow, usual = beats(bench, "victim", "neighbour", seconds=3)
        assert usual >= 5 and slow < usual * 0.8, (slow, usual)
        after = [waited(bench, g) for g in (GROUP, OTHER)]
        assert after[0] - before[0] > 500_000 and after[1] == before[1], "one waits, its neighbour does not"
        assert number(bench, f"cat {GROUP}/memory.high") < MIB << 20
        assert number(bench, "awk '/MemAvailable/ {print $2}' /proc/meminfo") > free * 0.9, "the node has plenty"
        assert bench.evidence(view).hits > 0 and bench.seen(view) == [True, True]
        limit = bench.sh(f"cat {GROUP}/memory.high")
        bench.sh("systemctl restart victim")
        until("the new one has the limit", lambda: bench.sh(f"cat {GROUP}/memory.high", check=False) == limit, 20)
        bench.recover(view)
        assert bench.sh(f"cat {GROUP}/memory.high") == str(600 << 20), "what systemd has for it"
        assert "oom_kill 0" in bench.sh(f"cat {GROUP}/memory.events")


def test_the_node_is_short_of_memory_until_the_kernel_kills(bench: Bench) -> None:
    look = "awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo"
    before = number(bench, look)
    view = bench.inject("memory_pressure", available_mib=128)
    assert number(bench, look) < 128 + 24 < before
    bench.sh("head -c 40M /dev/zero > /run/fills")
    until("it has given back", lambda: number(bench, look) > 128 - 24, 20)
    bench.sh("rm /run/fills")
    until("and has taken again", lambda: number(bench, look) < 128 + 24, 20)
    assert bench.evidence(view).armed and beats(bench, "neighbour", seconds=2)[0] > 0
    # The kernel's own killer, on demand: whom does it choose?
    bench.sh("echo f > /proc/sysrq-trigger")
    until("it is told", lambda: not bench.evidence(view).armed, 20)
    assert "killed the process of this injection" in " ".join(bench.evidence(view).notes)
    assert number(bench, look) > before * 0.8
    bench.recover(view)


def test_one_child_is_killed_for_want_of_memory_and_the_others_are_not(bench: Bench) -> None:
    """As a backend of a database: its control group is full, while the node has plenty."""
    with services(bench, victim=("OOMPolicy=continue", FAMILY)):
        runs(bench, "victim-1")
        runs(bench, "victim-2")
        main = main_pid(bench, "victim")
        children = bench.sh(f"ps -o pid= --ppid {main}").split()
        mark = bench.log_mark()
        view = bench.inject("oom_kill", unit="victim", pid=int(children[1]))
        (line,) = bench.logged(mark, "Killed process")
        assert f"Memory cgroup out of memory: Killed process {children[1]} (python3)" in line
        (report,) = bench.logged(mark, "oom-kill:")
        assert "oom_memcg=/system.slice/victim.service" in report
        until("the child is gone", lambda: children[1] not in bench.sh(f"ps -o pid= --ppid {main}").split())
        assert main_pid(bench, "victim") == main and children[0] in bench.sh(f"ps -o pid= --ppid {main}").split()
        assert "oom_kill 1" in bench.sh(f"cat {GROUP}/memory.events")
        assert bench.evidence(view).hits == 1 and bench.seen(view) == [True, True]
        bench.recover(view)
        assert bench.sh(f"cat {GROUP}/memory.max") == "max" and main_pid(bench, "victim") == main


def test_a_unit_that_ended_for_want_of_memory_runs_again(bench: Bench) -> None:
    with services(bench, victim=("", VICTIM)):
        runs(bench, "victim")
        view = bench.inject("oom_kill", unit="victim")
        becomes(bench, "victim", "failed")
        assert show(bench, "victim", "Result") == ["oom-kill"]
        assert bench.evidence(view).hits == 1
        bench.recover(view)
        becomes(bench, "victim", "active")
        assert bench.sh(f"cat {GROUP}/memory.max") == "max"


def test_the_node_runs_out_of_memory(bench: Bench) -> None:
    with services(bench, victim=("", VICTIM)):
        runs(bench, "victim")
        pid, mark = main_pid(bench, "victim"), bench.log_mark()
        view = bench.inject("oom_kill", unit="victim", where="node")
        first, *then = bench.logged(mark, "Killed process")
        assert f"Out of memory: Killed process {pid} (" in first
        assert len(then) <= 1 and all("(python3)" in line for line in then), "beside it only who took the memory"
        assert any("global_oom" in line for line in bench.logged(mark, "oom-kill:constraint=CONSTRAINT_NONE"))
        becomes(bench, "victim", "failed")
        assert bench.evidence(view).hits == 1 and bench.seen(view) == [True, True]
        assert number(bench, "awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo") > 250, "given back"
        bench.recover(view)
        becomes(bench, "victim", "active")


@pytest.mark.thorough
def test_a_unit_thrashes_and_the_agent_is_killed(bench: Bench) -> None:
    look = "awk '/^pswpin|^pswpout/ {print $2}' /proc/vmstat"
    with services(bench, victim=("", VICTIM)):
        runs(bench, "victim")
        mine, _ = beats(bench, "victim", "neighbour", seconds=3)
        view = bench.inject("swap_thrash", unit="victim", percent=60)
        first = bench.sh(look).split()
        slow, usual = beats(bench, "victim", "neighbour", seconds=4)
        back, out = (int(b) - int(a) for a, b in zip(first, bench.sh(look).split(), strict=True))
        assert back > 1000 and out > 1000, "pages a second or so, both ways"
        assert slow / 4 < mine / 3 * 0.7 and usual > 0, (mine, slow)
        assert number(bench, f"cat {GROUP}/memory.swap.current") > 4 << 20
        assert "swapfile.groundfault-" in bench.sh("swapon --show=NAME --noheadings")
        assert bench.evidence(view).hits > 1000 and all(bench.seen(view))
        bench.sh("systemctl kill --signal=KILL groundfault-agent")
        bench.lab.ready(bench.node)
        ended = bench.look(view)
        assert (ended.state, ended.reason, ended.residue) == ("recovered", "restart", ())
        assert (
            bench.sh("swapon --show --noheadings") == "" and bench.sh(f"ls {TOP} | grep -c swapfile; true") == "0"
        )
        assert bench.sh(f"cat {GROUP}/memory.high") == "max"


def test_memory_thrashes_beside_everybody(bench: Bench) -> None:
    look = "awk '/^pswpin/ {print $2}' /proc/vmstat"
    view = bench.inject("swap_thrash", working_set_mib=64, resident_mib=32)
    first = number(bench, look)
    until("pages come back", lambda: number(bench, look) > first + 2000, 30)
    bench.recover(view)
    assert bench.sh("swapon --show --noheadings") == ""


def test_a_page_of_a_process_is_broken(bench: Bench) -> None:
    with services(bench, victim=("", VICTIM)):
        runs(bench, "victim")
        pid, mark = main_pid(bench, "victim"), bench.log_mark()
        view = bench.inject("memory_poison", unit="victim", pages=2, accept_data_loss=True)
        becomes(bench, "victim", "failed")
        assert show(bench, "victim", "Result", "ExecMainStatus") == ["signal", "7"], "SIGBUS"
        assert len(bench.logged(mark, "Memory failure: 0x[0-9a-f]+: recovery action for .* page: Recovered")) == 2
        assert bench.logged(mark, f"Killing python3:{pid} due to hardware memory corruption")
        assert "8 kB" in bench.sh("grep HardwareCorrupted /proc/meminfo")
        found = bench.evidence(view)
        assert found.armed and found.hits >= 1 and bench.seen(view) == [True, True, True]
        ended = bench.recover(view)
        assert len(ended.data_lost) == 2 and f"process {pid} (python3)" in ended.data_lost[0]
        becomes(bench, "victim", "active")


def test_pages_of_a_file_are_broken_and_nothing_is_lost(bench: Bench) -> None:
    path = f"{TOP}/poisoned"
    right = bench.sh(f"head -c 65536 /dev/urandom > {path}; sync {path}; md5sum {path}")
    mark = bench.log_mark()
    view = bench.inject("memory_poison", file=path, pages=3)
    assert bench.sh(f"md5sum {path}") == right
    assert len(bench.logged(mark, "recovery action for clean LRU page: Recovered")) == 3
    ended = bench.recover(view)
    assert ended.data_lost == () and bench.sh(f"md5sum {path}; rm {path}") == right
