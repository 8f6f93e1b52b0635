"""A process of this machine that does what a test tells it, and short_io planted on it."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebpf.short_io import ShortIo, TracedProcesses
from node_agent.fault import TAG_PREFIX, Evidence, Facts, build_fault
from node_agent.host.real import RealHost
from node_agent.rules import Scope

TAG = f"{TAG_PREFIX}short-{os.getpid()}"
FACTS = Facts(
    node="w1", kernel="6.12", boot_id="b", os="Debian", python="3.13", agent_version="0.1.0", cpus=1,
    memory_mib=512, mounts=(),
)  # fmt: skip

TARGET = """
import os, select, signal, socket, subprocess, sys, threading, time
control = socket.socket(fileno=int(sys.argv[1]))

def pread(count=1, size=100):
    return [len(os.pread(f, size, 0)) for _ in range(count)]

def whole(read):
    pieces = []
    while piece := read():
        pieces.append(piece)
    return [len(p) for p in pieces], b''.join(pieces)

def in_thread(act):
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]

def in_child(act, fork=os.fork):
    back, there = os.pipe()
    if not fork():
        os.write(there, bytes(act()))
        os._exit(0)
    os.close(there)
    os.wait()
    return list(os.read(back, 100))

class Standing:
    def __init__(self):
        self.asked, self.answers = threading.Event(), []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        self.asked.wait()
        self.answers = pread(3)

    def ask(self):
        self.asked.set()
        self.thread.join()
        return self.answers

def busy(seconds):
    counts, until = [0] * 4, time.monotonic() + seconds
    def run(n):
        while time.monotonic() < until:
            assert len(os.pread(f, 100, 0)) == 3
            counts[n] += 1
    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return counts

def waits(read, size=100):
    def run():
        said.append(len(read(size)))
    said = []
    threading.Thread(target=run, daemon=True).start()
    return said

def until(true):
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()

f = os.open(sys.argv[2], os.O_RDONLY)
standing = Standing()
names = globals()
while text := control.recvmsg(65536)[0].decode():  # neither recvmsg nor sendmsg is ever shortened
    try:
        answer = eval(text, names)
    except SyntaxError:
        answer = exec(text, names)
    control.sendmsg([repr(answer).encode()])
"""


class Target:
    """A process that does what it is told to."""

    def __init__(self, file: Path) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(20)
        argv = (sys.executable, "-c", TARGET, str(theirs.fileno()), str(file))
        self.process = subprocess.Popen(argv, pass_fds=(theirs.fileno(),), start_new_session=True)
        theirs.close()
        self.pid = self.process.pid
        assert self("pread(2)") == [100, 100]

    def __call__(self, text: str) -> Any:
        self.tell(text)
        return self.answer()

    def tell(self, text: str) -> None:
        self._control.send(text.encode())

    def answer(self) -> Any:
        return ast.literal_eval(self._control.recv(65536).decode())

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._control.close()


class Planted:
    """The fault on real processes, its step applied as the agent does."""

    def __init__(self, host: RealHost, pids: tuple[int, ...], kind: str, parameters: dict[str, Any]) -> None:
        self.fault = build_fault(ShortIo, parameters)
        stat = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()
        alone = kind in ("process", "tree")
        scope = Scope.model_validate(
            {"kind": kind, "name": "x", "pid": pids[0] if alone else 0, "started": int(stat[19]) if alone else 0}
        )
        self.host, self.place = host, TracedProcesses(scope=scope, pids=pids)
        (self.step,) = self.fault.steps(FACTS, self.place, TAG)
        self.step.apply(host)

    @property
    def evidence(self) -> Evidence:
        return self.fault.evidence(self.host, self.place, TAG, 0)

    def runner(self) -> int:
        (pid,) = self.host.helpers.pids(f"{TAG}-ptrace")
        return pid

    def recover(self) -> None:
        self.step.revert(self.host, {})
        assert self.step.leftovers(self.host, {}) == ()


ASM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char buffer[64];
static long before[15], after[15];

/* rax rcx rdx rsi rdi r8 r9 r10 r11 r12 r13 r14 r15 rbx rflags: made, then taken down after the call */
void call(long number, long fd, char *to, long count);
__asm__(
"call: push %rbx; push %r12; push %r13; push %r14; push %r15\n"
"mov %rdi,%rax; mov %rsi,%rdi; mov %rdx,%rsi; mov %rcx,%rdx\n"
"mov $0x1111,%r8; mov $0x2222,%r9; xor %r10,%r10; mov $0x4444,%r12; mov $0x5555,%r13; mov $0x6666,%r14\n"
"mov $0x7777,%r15; mov $0x8888,%rbx\n"
"mov %rdx,before+16(%rip); mov %rsi,before+24(%rip); mov %rdi,before+32(%rip); mov %r8,before+40(%rip)\n"
"mov %r9,before+48(%rip); mov %r10,before+56(%rip); mov %r12,before+72(%rip); mov %r13,before+80(%rip)\n"
"mov %r14,before+88(%rip); mov %r15,before+96(%rip); mov %rbx,before+104(%rip)\n"
"pushfq; pop before+112(%rip)\n"
"syscall\n"
"mov %rdx,after+16(%rip); mov %rsi,after+24(%rip); mov %rdi,after+32(%rip); mov %r8,after+40(%rip)\n"
"mov %r9,after+48(%rip); mov %r10,after+56(%rip); mov %r12,after+72(%rip); mov %r13,after+80(%rip)\n"
"mov %r14,after+88(%rip); mov %r15,after+96(%rip); mov %rbx,after+104(%rip)\n"
"pushfq; pop after+112(%rip)\n"
"mov %rax,after(%rip)\n"
"pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; ret\n");

int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR), zero = open("/dev/zero", O_RDWR);
	static const long numbers[] = {0, 17, 1, 18};
	for (int i = 0; i < 4; i++) {
		call(numbers[i], fd, buffer, 40);
		int differ = memcmp(before + 1, after + 1, sizeof(before) - 8);
		printf("%ld %ld %s\n", after[0], after[2], differ ? "changed" : "same");
	}
	call(0, 99, buffer, 40);
	printf("%ld %ld\n", after[0], after[2]);
	call(0, zero, (char *)16, 40);
	printf("%ld %ld\n", after[0], after[2]);
	return 0;
}
"""


def until(what: str, true: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def untraced(pid: int) -> bool:
    return all("TracerPid:\t0\n" in (t / "status").read_text() for t in Path(f"/proc/{pid}/task").iterdir())
