"""Makes calls transfer less than asked, by ptrace, and counts them. A script for the agent's own Python.

Settings: `pids`; `started`, the start time that the first of them has (0: any); `tree`, their descendants, too;
`follow`, what they start, too; and those of :class:`ebpf.shortening.Judge`. Or `probe`: try it on a child.

At the entry of a call the count is lowered in its register, so that the kernel itself does the smaller transfer
and answers for it; at the end the register gets its value back. One thread does all of it, as ptrace demands.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from ebpf import ptrace
from ebpf.ptrace import AT_A_CALL, EVENT_EXEC, EVENT_STOP, Entry, Exit, Ptrace, Stop
from ebpf.runners.protocol import RefusedError, Report, serve
from ebpf.shortening import Judge
from node_agent.launcher import die_with_parent

_ATTACH_S = 15.0
_FIRST_STOP_S = 5.0
_LET_GO_S = 1.5
"""The agent ends politely for 2 s before it kills."""

_GROUP_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_RESTARTS = (-512, -513, -514, -516)
"""ERESTARTSYS and the like of include/linux/errno.h: the kernel will make the call again by itself."""


@dataclass
class _Thread:
    """A thread that is traced: the call it is in, of those that are judged; what was decided of it; whether the
    register has the smaller count just now; and the call that the kernel makes again, as decided before."""

    call: Entry | None = None
    bites: bool = False
    lowered: bool = False
    again: Entry | None = None


class Tracer:
    """Has hold of processes from :meth:`begin` to :meth:`end`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._pids, self._started = [int(pid) for pid in given["pids"]], int(given.get("started", 0))
        self._tree, self._follow = bool(given.get("tree")), bool(given.get("follow"))
        self._judge = Judge(given)
        self._kernel = Ptrace()
        self._threads: dict[int, _Thread] = {}
        self._processes: set[int] = set()
        self._running: set[int] = set()
        self._attached, self._all_stopped = threading.Event(), threading.Event()
        self._refused: RefusedError | None = None
        self._ending = self._letting_go = self._all_ended = False
        self._worker = threading.Thread(target=self._work, name="tracer", daemon=True)

    # -- from the thread that serves -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Attach. Raises RefusedError where the kernel does not allow it, and holds nothing then."""
        self._worker.start()
        if not self._attached.wait(_ATTACH_S):
            raise RefusedError("the processes start others faster than they can be attached to")
        if self._refused:
            raise self._refused
        self._all_stopped.wait(_FIRST_STOP_S)

    def end(self) -> None:
        """Give every register its value back, and let go of all: the kernel does that when the tracer ends."""
        self._ending = True
        deadline = time.monotonic() + _LET_GO_S + 0.2
        while self._worker.is_alive() and time.monotonic() < deadline:
            self._kernel.wake(self._worker.native_id or 0, signal.SIGUSR1)
            self._worker.join(0.02)

    def report(self) -> Report:
        """Counters, samples; `attached` counts threads and is 0 once the last has ended."""
        failed = not self._worker.is_alive() and not self._all_ended
        held = 0 if failed else len(self._threads)
        notes = [] if held else ["the tracer has failed" if failed else "no process of its target is left"]
        if held and self._running:
            notes.append(f"{len(self._running)} threads have not come out of the kernel since tracing began")
        return {
            "counters": self._judge.counters(), "samples": self._judge.samples(), "attached": held, "notes": notes
        }  # fmt: skip

    # -- the tracer's own thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is for the thread that serves
        try:
            self._attach()
        except RefusedError as refused:
            self._refused = refused
            return
        finally:
            self._attached.set()
        try:
            while not self._ending or self._still_lowered():
                for stop in self._stops():
                    with suppress(ProcessLookupError):  # killed while it stood still
                        self._stopped(stop)
        except ChildProcessError:
            self._threads.clear()
            self._all_ended = True

    def _stops(self) -> Iterator[Stop]:
        """Wait, and give what has stopped, each thread once: the kernel alone would prefer some of them.

        What was taken is not found again. A signal is not taken: it would be lost with the tracer. An event has to
        be: until then the kernel does not let a thread that executed be touched.
        """
        taken: list[Stop] = []
        stop = self._kernel.wait()
        while stop is not None:
            if not stop.event and (stop.signal != AT_A_CALL or len(self._threads) == 1):
                yield stop
                break
            self._kernel.take(stop.tid)
            taken.append(stop)
            stop = self._kernel.wait(block=False)
        yield from taken

    def _still_lowered(self) -> bool:
        """Whether a call is under way with a smaller count. Those that wait are asked to stop, once, and no more
        calls are shortened; in a call that cannot be interrupted they do so when it ends."""
        lowered = [tid for tid, thread in self._threads.items() if thread.lowered]
        if not self._letting_go:
            self._letting_go = True
            for tid in lowered:
                with suppress(ProcessLookupError):
                    self._kernel.interrupt(tid)
        return bool(lowered)

    def _attach(self) -> None:
        if self._started and _stat(self._pids[0])[19:20] != [str(self._started)]:
            raise RefusedError(f"process {self._pids[0]} has ended")
        deadline, done, new = time.monotonic() + _ATTACH_S, set[int](), self._pids
        while new and time.monotonic() < deadline:
            for pid in new:
                done.add(pid)
                if not _spared(pid):
                    self._processes.add(pid)
                    self._seize(pid, deadline)
            new = [pid for pid in _children(self._processes) if pid not in done] if self._tree else []
        if not self._threads:
            raise RefusedError("no process of the target is left")

    def _seize(self, pid: int, deadline: float) -> None:
        """All threads of a process. Those that they start meanwhile are attached by the kernel."""
        options = ptrace.TRACESYSGOOD | ptrace.TRACECLONE | ptrace.TRACEEXEC
        options |= (ptrace.TRACEFORK | ptrace.TRACEVFORK) if self._follow else 0
        known: set[int] = set()
        while (new := set(_threads_of(pid)) - known) and time.monotonic() < deadline:
            known |= new
            for tid in sorted(new):
                try:
                    self._kernel.seize(tid, options)
                    self._threads[tid] = _Thread()
                    self._running.add(tid)
                    self._kernel.interrupt(tid)
                except ProcessLookupError:
                    continue
                except PermissionError as error:
                    self._excuse(pid, tid, error)

    def _excuse(self, pid: int, tid: int, error: OSError) -> None:
        """A thread that cannot be attached to may have ended, or be ours already. Else raises RefusedError."""
        state, tracer = _stat(tid)[:1], _tracer_of(tid)
        if not state or state[0] in "ZX" or tracer == threading.get_native_id():
            return
        if tracer:
            raise RefusedError(f"process {pid} is traced already, by process {tracer}")
        raise RefusedError(f"process {pid} cannot be traced: {error.strerror}")

    def _stopped(self, stop: Stop) -> None:
        tid = stop.tid
        self._first_stop(tid)
        if not stop.signal:
            self._threads.pop(tid, None)
            self._kernel.reap(tid)
            return
        thread = self._threads.get(tid)
        if thread is None:
            if not self._follow and _leader_of(tid) not in self._processes:
                self._kernel.detach(tid)  # a process, made by clone with a signal of its own
                return
            thread = self._threads[tid] = _Thread()
        if stop.signal == AT_A_CALL:
            self._at_a_call(tid, thread)
        elif stop.event == EVENT_STOP and stop.signal in _GROUP_STOPS:
            self._kernel.listen(tid)
            return
        elif stop.event == EVENT_EXEC:
            self._executed(tid)
        self._kernel.resume(tid, 0 if stop.event or stop.signal == AT_A_CALL else stop.signal)

    def _first_stop(self, tid: int) -> None:
        self._running.discard(tid)
        if not self._running:
            self._all_stopped.set()

    def _executed(self, tid: int) -> None:
        """The thread that executed has the leader's id from here on, and the others have gone."""
        self._threads.pop(self._kernel.message(tid), None)
        self._threads[tid] = _Thread()

    def _at_a_call(self, tid: int, thread: _Thread) -> None:
        found = self._kernel.call(tid)
        if isinstance(found, Entry) and found.number in self._judge.calls:
            self._entered(tid, thread, found)
        elif isinstance(found, Exit) and thread.call is not None:
            self._left(tid, thread, thread.call, found.answer)

    def _entered(self, tid: int, thread: _Thread, call: Entry) -> None:
        if self._letting_go:
            return
        fd, count = call.arguments[0] & 0xFFFFFFFF, call.arguments[2]
        if call != thread.again:  # else a signal came, and the kernel makes the call again: the same one still
            thread.bites = self._judge.wants(count, lambda: self._kernel.kind(tid, fd))
        thread.call, thread.again = call, None
        if thread.bites:
            self._kernel.set_third(tid, self._judge.max_bytes)
            thread.lowered = True

    def _left(self, tid: int, thread: _Thread, call: Entry, answer: int) -> None:
        fd, count = call.arguments[0] & 0xFFFFFFFF, call.arguments[2]
        thread.call = None
        if thread.lowered:
            self._kernel.set_third(tid, count)
            thread.lowered = False
        if answer in _RESTARTS:
            thread.again = call
        elif thread.bites:
            self._judge.ended(tid, call.number, fd, count, answer)


def _spared(pid: int) -> bool:
    """The agent, this process, and sshd, which may be in the tree or the control group of the target."""
    if pid in (os.getpid(), os.getppid()):
        return True
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_bytes().startswith(b"sshd")
    return False


def _threads_of(pid: int) -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208


def _stat(pid: int) -> list[str]:
    """The words of /proc/PID/stat from the state on; none where it is gone (proc_pid_stat(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _children(processes: set[int]) -> list[int]:
    """Processes that one of these has started, and that are not among them."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if (
            name.isdecimal()
            and int(name) not in processes
            and int((_stat(int(name))[1:2] or ["0"])[0]) in processes
        ):
            found.append(int(name))
    return found


def _status(tid: int, field: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


def _leader_of(tid: int) -> int:
    return _status(tid, "Tgid:")


def _tracer_of(tid: int) -> int:
    return _status(tid, "TracerPid:")


def _probe() -> None:
    """Shorten a read of a child of our own. Raises RefusedError where that does not come true."""
    (go, say), (hear, told) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        read = os.read(go, 4)
        os.write(told, f"{len(read)} {len(os.read(go, 4))}\n".encode())
        os._exit(0)
    for fd in (go, told):
        os.close(fd)
    tracer = Tracer({"pids": [child], "operation": "read", "max_bytes": 1, "kind": "pipe",
                     "schedule": ("first", 1, 0), "seed": 0})  # fmt: skip
    try:
        tracer.begin()
        os.write(say, b"1234")
        answer = os.read(hear, 8)
    finally:
        os.kill(child, signal.SIGKILL)
        tracer.end()
    if answer != b"1 3\n":
        raise RefusedError(f"a read of 4 bytes that should be of 1 is of {answer.decode() or 'none'}")


def main() -> int:
    """The life of a helper; at its end registers are put back, also when the agent is killed."""
    tracers: list[Tracer] = []

    def start(given: dict[str, Any]) -> Callable[[], Report]:
        if not ptrace.supported():
            raise RefusedError("only for 64-bit x86: the count of a call is in a register of its own there")
        # The kernel sent SIGKILL so far when the agent ends; there is something to do first.
        if not die_with_parent(signal.SIGTERM, os.getppid()):
            raise RefusedError("the agent has ended")
        if given.get("probe"):
            _probe()
            return lambda: {"counters": {}, "attached": 0}
        tracers.append(Tracer(given))
        tracers[0].begin()
        return tracers[0].report

    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGTERM, _leave)
    try:
        return serve(start)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(3)  # whatever happens, this process ends
        for tracer in tracers:
            tracer.end()


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
