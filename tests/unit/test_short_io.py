"""short_io: what it plans, and real processes of this machine whose calls transfer less."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ebpf.runners.protocol import script
from ebpf.short_io import ShortIo, TracedProcesses, probe_ptrace
from ebpf.shortening import Schedule
from node_agent.errors import ApplyError, Refusal
from node_agent.fault import TAG_PREFIX
from node_agent.host.real import RealHost
from node_agent.injector import Injector
from node_agent.probe import Lacking
from node_agent.rules import Scope
from node_agent.schedule import parse_schedule
from node_agent.steps import load_step
from tests.contract.simulated import SimulatedHost, fresh_kernel
from tests.unit.test_rule_schedules import Picks, picks
from tests.unit.traced import ASM, FACTS, TAG, Planted, Target, until, untraced

__all__ = ["picks"]

TEXT = bytes(range(256)) * 4


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    (tmp_path / "text").write_bytes(TEXT)
    found = Target(tmp_path / "text")
    yield found
    found.end()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealHost]:
    if os.geteuid() != 0:
        monkeypatch.setattr("node_agent.host.helpers._group", lambda name: None)
    host = RealHost()
    yield host
    host.helpers.stop(f"{TAG}-ptrace")


Plant = Callable[..., Planted]


@pytest.fixture
def plant(host: RealHost, target: Target) -> Plant:
    def one(_scope: str = "process", _pids: tuple[int, ...] = (), **parameters: Any) -> Planted:
        return Planted(host, _pids or (target.pid,), _scope, parameters)

    return one


# -- what is transferred -----------------------------------------------------------------------------------------


def test_reads_are_short_and_nothing_is_lost(plant: Plant, target: Target) -> None:
    planted = plant(max_bytes=300, kind="regular", schedule="every:2")
    sizes, data = target("whole(lambda: os.read(f, 1000))")
    assert sizes == [1000, 24] and data == TEXT, "the second was let 300, and there were 24"
    target("os.lseek(f, 0, 0)")
    sizes, data = target("whole(lambda: os.read(f, 400))")
    assert sizes == [300, 400, 300, 24] and data == TEXT
    assert target("os.lseek(f, 0, 1)") == len(TEXT), "the kernel's own offset"
    evidence = planted.evidence
    assert evidence.armed and evidence.hits == 2, "those that ended because of the fault"
    assert evidence.counters == {"seen": 8, "matched": 8, "injected": 4, "suppressed_by_schedule": 4}
    hit = evidence.samples[-1]
    assert (hit.pid, hit.call, hit.answer) == (target.pid, "read", "300 of 400")
    assert hit.where.endswith("/text") and hit.comm.startswith("python")
    planted.recover()
    target("os.lseek(f, 0, 0)")
    assert target("len(os.read(f, 1000))") == 1000 and untraced(target.pid)


def test_writes_are_short_and_nothing_is_lost(plant: Plant, target: Target, tmp_path: Path) -> None:
    target(f"out = os.open({str(tmp_path / 'out')!r}, os.O_RDWR | os.O_CREAT)")
    planted = plant(operation="write", max_bytes=10)
    assert target("[os.write(out, bytes(range(25))[n:]) for n in (0, 10, 20)]") == [10, 10, 5]
    assert (tmp_path / "out").read_bytes() == bytes(range(25))
    assert target("os.pwrite(out, b'x' * 11, 100)") == 10 and target("pread(1)") == [100], "reads are not writes"
    assert planted.evidence.counters == {"seen": 4, "matched": 3, "injected": 3, "suppressed_by_schedule": 0}
    assert planted.evidence.hits == 3


def test_a_file_ends_early(plant: Plant, target: Target) -> None:
    plant(max_bytes=0, schedule="ratio:1/3")
    assert target("pread(6)") == [100, 100, 0, 100, 100, 0]
    assert target("whole(lambda: os.read(f, 400))")[0] == [400, 400]


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("regular", (5, 100, 100, 100, 8, 5)),
        ("pipe", (100, 5, 100, 100, 8, 100)),
        ("socket", (100, 100, 5, 5, 8, 100)),
        ("any", (5, 5, 5, 5, 8, 5)),
    ],
)
def test_kinds(plant: Plant, target: Target, kind: str, answers: tuple[int, ...]) -> None:
    target("p, q = os.pipe(); a, b = socket.socketpair(); e = os.eventfd(3); t = os.memfd_create('x')")
    target("os.write(q, bytes(100)); a.sendall(bytes(200)); os.write(t, bytes(100))")
    plant(operation="any", max_bytes=5, kind=kind)
    assert target("(*pread(), len(os.read(p, 100)), len(b.recv(100)), len(os.read(b.fileno(), 100)), "
                  "len(os.read(e, 8)), len(os.pread(t, 100, 0)))") == answers  # fmt: skip
    if kind == "socket":
        assert target("[a.send(bytes(9)), os.write(a.fileno(), bytes(9)), os.write(q, bytes(9))]") == [5, 5, 9]


@pytest.mark.parametrize(
    ("schedule", "pattern"),
    [
        ("always", "SSSSSSSSSSSS"), ("every:4", "...S...S...S"), ("after:9", ".........SSS"),
        ("first:2", "SS.........."), ("ratio:3/4", ".SSS.SSS.SSS"),
    ],
)  # fmt: skip
def test_when(plant: Plant, target: Target, schedule: str, pattern: str) -> None:
    planted = plant(max_bytes=3, kind="regular", schedule=schedule)
    assert target("pread(2, size=3)") == [3, 3], "asks for no more, so it does not count for the schedule"
    assert target("pread(12)") == [3 if mark == "S" else 100 for mark in pattern]
    counters = planted.evidence.counters
    assert (counters["seen"], counters["matched"], planted.evidence.hits) == (14, 12, pattern.count("S"))


@pytest.mark.parametrize("schedule", ["probability:0.3", "probability:1", "ratio:5/13", "every:7", "burst:2/3"])
def test_the_schedules_are_those_of_the_rule_table(picks: Picks, schedule: str) -> None:
    when = parse_schedule(schedule)
    for seed in (0, 7, 2**63 - 1):
        ours = Schedule(when.kind, when.a, when.b, seed)
        for n in range(500):
            assert ours.picks(n, n * 10**8) == picks(schedule, seed, n, n * 10**8), (schedule, seed, n)


# -- what the program sees of it ---------------------------------------------------------------------------------


def test_registers_are_as_they_were(plant: Plant, target: Target, tmp_path: Path) -> None:
    """A program that looks at every register that the kernel's interface promises to leave alone."""
    (tmp_path / "asm.c").write_text(ASM)
    subprocess.run(
        ("gcc", "-O1", "-no-pie", "-static", "-w", "-o", tmp_path / "asm", tmp_path / "asm.c"), check=True
    )
    command = (
        f"subprocess.run(({str(tmp_path / 'asm')!r}, {str(tmp_path / 'text')!r}), capture_output=True).stdout"
    )
    assert target(command) == b"40 40 same\n" * 4 + b"-9 40\n-14 40\n"
    plant("tree", operation="any", max_bytes=9, kind="regular")
    assert target(command) == b"9 40 same\n" * 4 + b"-9 40\n-14 40\n"


# -- whose -------------------------------------------------------------------------------------------------------


def test_a_process_is_all_its_threads_and_nobody_else(plant: Plant, target: Target) -> None:
    planted = plant(max_bytes=3, kind="regular")
    assert target("standing.ask()") == [3, 3, 3], "a thread that was there"
    assert target("in_thread(lambda: pread(2))") == [3, 3], "a thread that is new"
    assert target("in_thread(lambda: in_thread(pread))") == [3]
    assert target("in_child(lambda: pread(2))") == [100, 100]
    assert target("in_child(lambda: pread(2), lambda: threading._start_new_thread and os.fork())") == [100, 100]
    assert planted.evidence.hits == 6


def test_a_tree_is_its_descendants_too(plant: Plant, target: Target) -> None:
    """Those that were there, those that come, and what they execute."""
    target("g, h = os.pipe(); i, j = os.pipe()")
    target("os.fork() or (os.read(g, 1), os.write(j, bytes(pread(2) + in_child(pread))), os._exit(0))")
    plant("tree", max_bytes=3, kind="regular")
    target("os.write(h, b'g')")
    assert target("list(os.read(i, 100))") == [3, 3, 3]
    assert target("in_child(lambda: in_child(lambda: in_thread(lambda: pread(2))))") == [3, 3]
    target("os.waitpid(-1, 0)")


def test_what_a_tree_executes(plant: Plant, target: Target) -> None:
    """By the leader, and by another thread, which takes the leader's id. dd makes one call a block."""
    planted = plant("tree", max_bytes=900, kind="regular", schedule="always")
    dd = "('dd', 'if=' + sys.argv[2], 'bs=1000', 'count=1')"
    assert target(f"len(subprocess.run({dd}, capture_output=True).stdout)") == 900
    execute = f"threading.Thread(target=os.execvp, args=('dd', {dd})).start(), time.sleep(9)"
    target("m, n = os.pipe()")
    target(f"os.fork() or (os.dup2(os.open('/dev/null', 1), 2), os.dup2(n, 1), {execute})")
    assert target("(os.waitpid(-1, 0)[1], len(os.read(m, 2000)))") == (0, 900)
    assert [h.comm for h in planted.evidence.samples if h.where.endswith("/text")] == ["dd", "dd"]


def test_processes_of_a_group_and_what_they_start(plant: Plant, target: Target, tmp_path: Path) -> None:
    other = Target(tmp_path / "text")
    try:
        planted = plant("cgroup", (target.pid, other.pid), max_bytes=3, kind="regular")
        assert target("in_child(pread)") == other("pread(1)") == [3]
        other.end()
        assert target("pread(2)") == [3, 3] and planted.evidence.armed
        assert planted.evidence.counters["matched"] == planted.evidence.hits == 4
    finally:
        other.end()


def test_busy_threads_all_make_progress(plant: Plant, target: Target) -> None:
    planted = plant(max_bytes=3, kind="regular")
    counts = target("busy(1.5)")
    assert min(counts) > 0.1 * max(counts), counts
    assert planted.evidence.hits == sum(counts)


# -- what else happens to traced processes -----------------------------------------------------------------------


def test_stop_and_continue(plant: Plant, target: Target) -> None:
    plant(max_bytes=3, kind="regular")
    os.kill(target.pid, signal.SIGSTOP)

    def state() -> str:
        return Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()[0]

    until("it stops", lambda: state() in "tT")
    target.tell("pread()")
    time.sleep(0.1)
    assert state() in "tT", "a stopped process stays stopped"
    os.kill(target.pid, signal.SIGCONT)
    assert target.answer() == [3]


def test_a_process_that_stands_still_already(plant: Plant, target: Target) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    plant(max_bytes=3, kind="regular")
    target.tell("pread()")
    os.kill(target.pid, signal.SIGCONT)
    assert target.answer() == [3]


def test_signals_arrive_and_a_call_that_is_made_again_counts_once(plant: Plant, target: Target) -> None:
    target("signal.signal(signal.SIGALRM, lambda *_: came.append(1)); came = []; p, q = os.pipe()")
    target("signal.siginterrupt(signal.SIGALRM, False); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)")
    planted = plant(max_bytes=3, kind="pipe", schedule="every:2")
    target("threading.Timer(0.5, os.write, (q, bytes(200))).start()")
    assert target("[len(os.read(p, 100)) for _ in range(3)]") == [100, 3, 97]
    assert target("len(came)") >= 1
    assert planted.evidence.counters["matched"] == 3


def test_the_target_ends(plant: Plant, target: Target) -> None:
    planted = plant(max_bytes=3)
    target.process.kill()
    assert target.process.wait() == -signal.SIGKILL, "its own parent learns of it"
    until("nothing to trace", lambda: not planted.evidence.armed)
    assert "no process" in planted.evidence.notes[0]


def test_a_process_that_is_traced_already(plant: Plant, target: Target) -> None:
    plant(max_bytes=3)
    second = ShortIo(pid=target.pid)
    place = TracedProcesses(scope=Scope(kind="cgroup", name="x"), pids=(target.pid,))
    (step,) = second.steps(FACTS, place, f"{TAG}b")
    try:
        with pytest.raises(ApplyError, match=rf"process {target.pid} is traced already, by process \d+"):
            step.apply(RealHost())
    finally:
        step.revert(RealHost(), {})
    assert target("pread(1)") == [3]


def test_a_number_that_another_process_has_by_now(target: Target, host: RealHost) -> None:
    place = TracedProcesses(scope=Scope(kind="process", name="x", pid=target.pid, started=7), pids=(target.pid,))
    (step,) = ShortIo(pid=target.pid).steps(FACTS, place, TAG)
    with pytest.raises(ApplyError, match="has ended"):
        step.apply(host)
    assert untraced(target.pid)


# -- bad luck ----------------------------------------------------------------------------------------------------


def test_a_call_that_waits_is_whole_again_when_the_fault_ends(plant: Plant, target: Target) -> None:
    target("p, q = os.pipe(); a, b = socket.socketpair()")
    planted = plant(max_bytes=3, operation="any")
    target("one, two = waits(lambda n: os.read(p, n)), waits(b.recv)")
    until("both wait", lambda: planted.evidence.counters["injected"] == 2)
    planted.recover()
    target("os.write(q, bytes(50)); a.send(bytes(60))")
    assert target("until(lambda: one and two) and (one, two)") == ([50], [60])


def test_the_runner_is_killed_and_the_target_goes_on(plant: Plant, target: Target) -> None:
    target("p, q = os.pipe()")
    planted = plant(max_bytes=3)
    target("one = waits(lambda n: os.read(p, n))")
    until("it waits", lambda: planted.evidence.counters["injected"] == 1)
    os.kill(planted.runner(), signal.SIGKILL)
    until("it is let go", lambda: untraced(target.pid), 1.0)
    assert target("pread(2)") == [100, 100]
    target("os.write(q, bytes(50))")
    assert target("until(lambda: one) and (one, len(os.read(p, 100)))") == ([3], 47), "as WARNINGS have it"
    assert not planted.evidence.armed
    planted.recover()


def test_the_runner_is_killed_at_full_rate(plant: Plant, target: Target) -> None:
    """Wherever its threads are just then: none is lost, none stays stopped, and no read is short afterwards."""
    target("was, on = [], [1]")
    target("busy = [threading.Thread(target=lambda: [was.append(pread(1)[0]) for _ in iter(on.__len__, 0)]) "
           "for _ in range(4)]; [t.start() for t in busy]")  # fmt: skip
    for _ in range(8):
        planted = plant(max_bytes=3, kind="regular")
        until("it bites", lambda: planted.evidence.hits > 50)  # noqa: B023
        os.kill(planted.runner(), signal.SIGKILL)
        until("it is let go", lambda: untraced(target.pid), 1.0)
        mark = target("len(was)")  # each thread may have one that it has not written down yet
        target(f"until(lambda: len(was) > {mark + 5000})")
        assert target(f"[set(was[{mark}:]) <= {{3, 100}}, was[{mark}:].count(3) <= 4]") == [True, True]
        planted.recover()
    assert target("[on.clear(), [t.join(5) for t in busy], [t.is_alive() for t in busy]][-1]") == [False] * 4


def test_the_agent_is_killed_and_registers_are_put_back(target: Target) -> None:
    """An agent in small: the runner is bound to its life as the launcher binds helpers."""
    given = {"pids": [target.pid], "operation": "any", "max_bytes": 3, "kind": "pipe",
             "schedule": ("always", 0, 0), "seed": 0}  # fmt: skip
    launcher = str(Path(script("ptrace_runner")).parents[2] / "node_agent" / "launcher.py")
    code = (
        "import os, subprocess, sys, time\n"
        f"argv = (sys.executable, '-I', '-S', {launcher!r}, '', str(os.getpid()), "
        f"sys.executable, '-I', '-S', {script('ptrace_runner')!r})\n"
        "runner = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        f"runner.stdin.write({json.dumps(given) + chr(10)!r})\n"
        "runner.stdin.flush()\n"
        "print(runner.stdout.readline(), runner.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    target("p, q = os.pipe()")
    agent = subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE, text=True)
    assert agent.stdout and agent.stdout.readline() == "ready\n"
    runner = int(agent.stdout.readline())
    target("one = waits(lambda n: os.read(p, n))")
    time.sleep(0.2)
    agent.kill()
    agent.wait()
    until("the runner ends, too", lambda: not Path(f"/proc/{runner}/cmdline").exists()
          or not Path(f"/proc/{runner}/cmdline").read_bytes(), 2.0)  # fmt: skip
    until("it is let go", lambda: untraced(target.pid), 1.0)
    target("os.write(q, bytes(50))")
    assert target("until(lambda: one) and one") == [50]


# -- before any of that ------------------------------------------------------------------------------------------


def test_the_probe_does_it(host: RealHost, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_ptrace(host)
    kernel = fresh_kernel()
    kernel.helper_refuses = "ptrace is forbidden here"
    with pytest.raises(Lacking, match="forbidden here"):
        probe_ptrace(SimulatedHost(kernel))
    assert not kernel.helpers and not [p for p in kernel.texts if TAG_PREFIX in p]


def test_the_plan(tmp_path: Path) -> None:
    injector = Injector(SimulatedHost(fresh_kernel()), tmp_path, "w1")
    plan = injector.plan("inj-1", "short_io", {"cgroup": "/work", "operation": "write", "max_bytes": 0})
    assert plan.notes.backend == "ptrace" and plan.notes.covers == ("write", "pwrite64", "sendto")
    assert any("io_uring" in n for n in plan.notes.not_covered)
    assert any("SIGKILL" in w for w in plan.notes.warnings) and any("answer 0" in w for w in plan.notes.warnings)
    (step,) = plan.steps
    assert load_step(step.model_dump(mode="json")) == step
    with pytest.raises(Refusal, match="there is no"):
        injector.plan("inj-1", "short_io", {"cgroup": "/nobody"})
    with pytest.raises(Refusal, match="max_bytes"):
        injector.plan("inj-1", "short_io", {"cgroup": "/work", "max_bytes": -1})


def test_a_scope_without_processes_is_refused(tmp_path: Path) -> None:
    kernel = fresh_kernel()
    kernel.texts["/sys/fs/cgroup/work/cgroup.procs"] = ""
    with pytest.raises(Refusal, match="has no processes"):
        Injector(SimulatedHost(kernel), tmp_path, "w1").plan("inj-1", "short_io", {"cgroup": "/work"})
