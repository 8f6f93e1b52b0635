"""strace as a backend: its command, what it writes, and the real one on a process of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpf.runners.protocol import parse_report
from ebpf.strace import STRACE, CannotDoError, Counting, Tampering, strace_argv, when_words
from ebpf.strace_helper import helper_name, probe_strace, strace_evidence, strace_step
from node_agent.errors import ApplyError
from node_agent.fault import TAG_PREFIX
from node_agent.host.real import RealHost
from node_agent.probe import Lacking
from node_agent.residue import CATEGORIES
from node_agent.schedule import parse_schedule
from node_agent.steps import load_step
from tests.contract.simulated import SimulatedHost, fresh_kernel

READS = """
import os, sys
for _ in sys.stdin:
    answers = []
    for _ in range(12):
        try:
            fd = os.open('/etc/passwd', os.O_RDONLY)
            answers.append(len(os.pread(fd, 5, 0)))
        except OSError as error:
            answers.append(-error.errno)
        os.close(fd)
    print(*answers, flush=True)
"""


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("always", ""), ("ratio:3/3", ""), ("every:3", "3+3"), ("ratio:1/4", "4+4"), ("after:10", "11+"),
        ("first:5", "1..5"), ("first:65534", "1..65534"),
    ],
)  # fmt: skip
def test_schedules_in_the_words_of_strace(schedule: str, words: str) -> None:
    assert when_words(parse_schedule(schedule)) == words


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("probability:0.5", "no dice"), ("burst:1/2", "not seconds"), ("ratio:2/5", "one call of every K"),
        ("first:65535", "counts to 65535"), ("every:70000", "counts to"), ("after:65535", "counts to"),
    ],
)  # fmt: skip
def test_schedules_it_cannot_do(schedule: str, why: str) -> None:
    with pytest.raises(CannotDoError, match=why):
        when_words(parse_schedule(schedule))


def test_the_command() -> None:
    what = Tampering(("read", "pread64", "read"), error="EIO", delay_us=2500, signal="SIGUSR1")
    assert strace_argv((7, 9), what, parse_schedule("every:3")) == (
        STRACE, "-f", "-s", "0", "-e", "trace=read,pread64", "-e", "signal=SIGUSR1", "-e",
        "inject=read,pread64:error=EIO:delay_enter=2500:signal=SIGUSR1:when=3+3", "-p", "7", "-p", "9",
    )  # fmt: skip
    assert "signal=none" in strace_argv((7,), Tampering(("read",), error="EIO"), parse_schedule("always"))


@pytest.mark.parametrize(
    "what",
    [
        Tampering((), error="EIO"), Tampering(("read:error=1",), error="EIO"), Tampering(("%file",), error="EIO"),
        Tampering(("read",), error="EIO:retval=0"), Tampering(("read",), signal="9; x"), Tampering(("read",)),
    ],
)  # fmt: skip
def test_a_command_is_nothing_else(what: Tampering) -> None:
    with pytest.raises(CannotDoError):
        strace_argv((7,), what, parse_schedule("always"))
    with pytest.raises(CannotDoError):
        strace_argv((), Tampering(("read",), error="EIO"), parse_schedule("always"))


def test_what_strace_writes() -> None:
    counting = Counting("SIGWINCH")
    for line in """strace: Process 942 attached with 2 threads
[pid   984] openat(AT_FDCWD, "/tmp/(INJECTED)", O_RDONLY|O_CLOEXEC <unfinished ...>
[pid   942] openat(AT_FDCWD, "/tmp/) = 1 (INJECTED)", O_RDONLY) = 3
[pid   984] <... openat resumed>)       = -1 ENOENT (No such file or directory) (DELAYED)
read(3, 0x7fd53c0dfec0, 10) = -1 EIO (Input/output error) (INJECTED)
[pid   984] read(3, 0x7fd53c0dfec0, 10) = -1 EIO (Input/output error) (INJECTED) (DELAYED)
[pid   984] read(3, 0x7fd53c0dfec0, 10) = -1 (errno 600) (INJECTED)
[pid   984] read(4,  <unfinished ...>
[pid   984] <... read resumed> <unfinished ...>) = ?
[pid   984] mmap(NULL, 10) = 0x7fd53c0dfec0
[pid   984] --- SIGWINCH {si_signo=SIGWINCH, si_code=SI_KERNEL} ---
[pid   984] --- SIGWINCH {si_signo=SIGWINCH, si_code=SI_USER, si_pid=1} ---
[pid   984] --- SIGSEGV {si_signo=SIGSEGV, si_code=SI_KERNEL} ---
[pid   984] +++ exited with 0 +++
strace: Process 985 attached
/usr/bin/strace: invalid system call 'x'""".splitlines():
        counting.take(line)
    assert counting.counters() == {"hits": 4, "seen": 7, "failed": 3, "delayed": 2, "signalled": 1}
    assert counting.attached == {942, 985} and counting.complaints == ["invalid system call 'x'"]


def test_the_step_is_data() -> None:
    step = strace_step("groundfault-a-1", (7,), Tampering(("read",), error="EIO"), parse_schedule("always"))
    assert load_step(step.model_dump(mode="json")) == step
    assert "groundfault-a-1" in step.name and all(r.kind in CATEGORIES for r in step.resources())
    other = strace_step("groundfault-b-2", (7, 8), Tampering(("close",), error="EIO"), parse_schedule("always"))
    assert any(a.conflicts(b) for a in step.resources() for b in other.resources()), "a process has one tracer"


def test_the_probe_and_reports() -> None:
    kernel = fresh_kernel()
    kernel.texts.pop(STRACE, None)
    with pytest.raises(Lacking):
        probe_strace(SimulatedHost(kernel))
    for text in ("[]", '{"counters": 3}', '{"counters": {"hits": -1}}', '{"counters": {"hits": "1"}}', "no"):
        with pytest.raises(OSError, match="not a report"):
            parse_report(text)


# -- the real one ------------------------------------------------------------------------------------------------


class Target:
    """A process that reads when it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            (sys.executable, "-c", READS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.reads() == [5] * 12

    def reads(self) -> list[int]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]


@pytest.fixture
def target() -> Iterator[Target]:
    found = Target()
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealHost]:
    if not Path(STRACE).exists():
        pytest.skip("no strace")
    if os.geteuid() != 0:
        monkeypatch.setattr("node_agent.host.helpers._group", lambda name: None)
    host = RealHost()
    yield host
    host.helpers.stop(helper_name(TAG))


TAG = f"{TAG_PREFIX}strace-{os.getpid()}"


def until(what: str, true: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_every_third_read_fails_and_is_counted(host: RealHost, target: Target) -> None:
    what = Tampering(("pread64",), error="EIO")
    step = strace_step(TAG, (target.process.pid,), what, parse_schedule("every:3"))
    step.apply(host)
    assert target.reads() == [5, 5, -5] * 4
    until("all is counted", lambda: strace_evidence(host, TAG).counters["seen"] == 12)
    evidence = strace_evidence(host, TAG)
    assert evidence.armed and evidence.hits == 4 == evidence.counters["failed"]
    step.revert(host, {})
    assert target.reads() == [5] * 12 and step.leftovers(host, {}) == ()
    assert "TracerPid:\t0\n" in Path(f"/proc/{target.process.pid}/status").read_text()


def test_a_delay(host: RealHost, target: Target) -> None:
    step = strace_step(
        TAG, (target.process.pid,), Tampering(("pread64",), delay_us=50_000), parse_schedule("first:4")
    )
    step.apply(host)
    began = time.monotonic()
    assert target.reads() == [5] * 12
    assert 0.2 <= time.monotonic() - began < 0.6
    until("all is counted", lambda: strace_evidence(host, TAG).counters["seen"] == 12)
    assert strace_evidence(host, TAG).hits == 4 == strace_evidence(host, TAG).counters["delayed"]


def test_a_process_that_is_traced_already(host: RealHost, target: Target) -> None:
    other = subprocess.Popen((STRACE, "-p", str(target.process.pid)), stderr=subprocess.PIPE, text=True)
    assert other.stderr and "attached" in other.stderr.readline()
    step = strace_step(TAG, (target.process.pid,), Tampering(("read",), error="EIO"), parse_schedule("always"))
    with pytest.raises(ApplyError, match=r"strace: attach: ptrace\(PTRACE_SEIZE, \d+\): Operation not permitted"):
        step.apply(host)
    other.terminate()
    other.communicate()


def test_the_target_ends(host: RealHost, target: Target) -> None:
    step = strace_step(TAG, (target.process.pid,), Tampering(("read",), delay_us=1), parse_schedule("always"))
    step.apply(host)
    target.process.kill()
    until("strace has ended", lambda: not strace_evidence(host, TAG).armed)
    assert "no process" in strace_evidence(host, TAG).notes[0]


def test_the_runner_is_killed_and_the_target_is_let_go(host: RealHost, target: Target) -> None:
    """What happens when the agent is killed: the kernel kills the runner, and strace is to end by itself."""
    step = strace_step(TAG, (target.process.pid,), Tampering(("pread64",), error="EIO"), parse_schedule("always"))
    step.apply(host)
    assert target.reads() == [-5] * 12
    runner = min(host.helpers.pids(helper_name(TAG)), key=lambda pid: os.getsid(pid) != pid)
    os.kill(runner, signal.SIGKILL)
    until("strace has ended", lambda: not host.helpers.pids(helper_name(TAG)), 1.0)
    assert target.reads() == [5] * 12
    assert json.loads(step.payload)["pids"] == [target.process.pid]
