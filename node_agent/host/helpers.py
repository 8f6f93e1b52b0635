"""Processes that belong to an injection: found by mark and control group, and dead when the agent is.

A helper is a child of the agent. It gets SIGKILL from the kernel when the agent's process ends, however that ends;
its standard input ends then, too. What it starts itself is in its control group, and goes when the injection does.
"""

from __future__ import annotations

import errno
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from node_agent.host import HelperFailed

MARK = "GROUNDFAULT_TAG"
"""The environment variable that has a helper's name, in it and in all that it starts."""

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}
_LAUNCHER = str(Path(__file__).parents[1] / "launcher.py")
_POLITE_S = 2.0
_KILL_S = 5.0
_POLL_S = 0.01
_KEPT_LINES = 40
_LONGEST_LINE = 1 << 20


class HelperProcesses:
    """The helpers of this agent. Making one touches nothing."""

    def __init__(self) -> None:
        self._spawner = _Spawner()
        self._mine: dict[str, _Helper] = {}

    def start(self, name: str, argv: Sequence[str], *, payload: str, ready: str, ready_s: float) -> None:
        group = _group(name)
        if group is not None:
            group.mkdir(exist_ok=True)
        command = (sys.executable, "-I", "-S", _LAUNCHER, str(group or ""), str(os.getpid()), *argv)
        process = self._spawner.do(
            lambda: subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                start_new_session=True, env={**_ENVIRONMENT, MARK: name},
            )
        )  # fmt: skip
        helper = self._mine[name] = _Helper(process)
        if payload:
            helper.say(payload)
        deadline = time.monotonic() + ready_s
        while (line := helper.line(deadline)) is not None:
            if line == ready:
                return
        status = helper.status()
        raise HelperFailed(argv[0], status, helper.complaint() if status is not None else f"{ready_s:g} s")

    def ask(self, name: str, request: str, *, timeout_s: float = 5.0) -> str:
        helper = self._mine.get(name)
        if helper is None or helper.status() is not None:
            raise ProcessLookupError(errno.ESRCH, "the helper has ended", name)
        return helper.ask(request, timeout_s)

    def complaint(self, name: str) -> str:
        helper = self._mine.get(name)
        return helper.complaint() if helper else ""

    def pids(self, name: str) -> Sequence[int]:
        return sorted({*_in_group(_group(name)), *_marked(name)})

    def traces(self, name: str) -> Sequence[str]:
        group = _group(name)
        found = [f"process {pid} ({_comm(pid)})" for pid in self.pids(name)]
        return (*found, *((f"control group {group}",) if group is not None and group.is_dir() else ()))

    def stop(self, name: str) -> None:
        group = _group(name)
        if not self._end(name, _POLITE_S, lambda: _signal(self.pids(name), signal.SIGTERM)):
            self._end(name, _KILL_S, lambda: _kill(group, self.pids(name)))
        left = self.pids(name)
        if left:
            who = ", ".join(f"{pid} ({_comm(pid)})" for pid in left)
            raise OSError(errno.EBUSY, f"processes do not end: {who}", name)
        helper = self._mine.pop(name, None)
        if helper is not None:
            helper.close()
        if group is not None:
            _remove(group)

    def _end(self, name: str, seconds: float, act: Callable[[], None]) -> bool:
        """Act on all processes of a helper until none is left, a new one is caught too; whether none is left."""
        deadline = time.monotonic() + seconds
        while self.pids(name):
            act()
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


class _Spawner:
    """One thread that starts all helpers and lives as long as the agent.

    The kernel sends the signal of a parent's death when the *thread* that forked ends (prctl(2)), and threads that
    answer requests come and go.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def do(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Call `start` in that thread. Raises the OSError that it raises."""
        answer: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put(start())
            except OSError as error:
                answer.put(error)

        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # a forked agent has no threads
                self._thread = threading.Thread(target=self._run, name="helpers", daemon=True)
                self._thread.start()
        self._work.put(work)
        result = answer.get()
        if isinstance(result, OSError):
            raise result
        return result

    def _run(self) -> None:
        while True:
            self._work.get()()


class _Helper:
    """A running child: its lines as they come, and the tail of what it complains."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._asking = threading.Lock()
        self._feeder = threading.Thread()
        self._reader = threading.Thread(target=self._read, name="helper-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ, (bytearray(), self._lines.put))
            waiting.register(self._process.stderr, selectors.EVENT_READ, (bytearray(), self._tail.append))
            while waiting.get_map():
                for key, _ in waiting.select():
                    buffer, take = key.data
                    piece = os.read(key.fd, 65536)
                    buffer += piece
                    *lines, rest = buffer.split(b"\n")
                    for line in lines if piece or not rest else (*lines, rest):
                        take(line.decode(errors="replace"))
                    buffer[:] = rest[-_LONGEST_LINE:]
                    if not piece:
                        waiting.unregister(key.fileobj)
        self._lines.put(None)

    def say(self, text: str) -> None:
        """One line to its standard input; a helper that has ended or reads no more is told nothing."""
        assert self._process.stdin is not None
        if self._feeder.is_alive():  # it has not read what it was told before
            return
        self._feeder = threading.Thread(
            target=_feed, args=(self._process.stdin.fileno(), text), name="helper-input", daemon=True
        )
        try:
            self._feeder.start()
        except RuntimeError as error:  # a machine that has no more threads, as a fault may have it
            raise BlockingIOError(errno.EAGAIN, str(error)) from error
        self._feeder.join(_POLITE_S)

    def line(self, deadline: float) -> str | None:
        """The next line it writes; None where it ends first or the time is up."""
        try:
            found = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if found is None:
            self._lines.put(None)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLITE_S)
        return found

    def ask(self, request: str, timeout_s: float) -> str:
        """Its answer to a line. Raises TimeoutError, or ProcessLookupError where it ends instead."""
        with self._asking:
            while not self._lines.empty():  # an answer that came too late for an earlier question
                if self._lines.get() is None:
                    self._lines.put(None)
                    break
            self.say(request)
            answer = self.line(time.monotonic() + timeout_s)
        if answer is None and self.status() is not None:
            raise ProcessLookupError(errno.ESRCH, f"the helper has ended: {self.complaint()}")
        if answer is None:
            raise TimeoutError(errno.ETIMEDOUT, f"the helper does not answer within {timeout_s:g} s")
        return answer

    def status(self) -> int | None:
        """Its exit status, minus a signal's number; None while it runs."""
        return self._process.poll()

    def complaint(self) -> str:
        """The last lines of its standard error."""
        if self.status() is not None:
            self._reader.join(_POLITE_S)
        return "\n".join(self._tail).strip()

    def close(self) -> None:
        """After its end: reap it and close our ends of its pipes."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLITE_S)
        for thread in (self._reader, self._feeder):
            if thread.is_alive():
                thread.join(_POLITE_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _feed(fd: int, text: str) -> None:
    data = text.encode() + b"\n"
    with suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def _group(name: str) -> Path | None:
    """The control group of a helper's own; None where this machine has no cgroup v2, beside v1 or alone."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[:1] == ["cgroup2"]:
            return Path(left.split()[4]) / name
    return None


def _in_group(group: Path | None) -> Iterator[int]:
    if group is not None:
        with suppress(FileNotFoundError, OSError):  # ENODEV: removed while being read
            yield from map(int, (group / "cgroup.procs").read_text().split())


def _marked(name: str) -> Iterator[int]:
    mark = f"{MARK}={name}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def _comm(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "gone"


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill(group: Path | None, pids: Sequence[int]) -> None:
    if group is not None:
        with suppress(OSError):  # cgroup.kill is of Linux 5.14; one by one does as well
            (group / "cgroup.kill").write_text("1")
    _signal(pids, signal.SIGKILL)


def _remove(group: Path) -> None:
    """Remove an empty control group; its last process may still be on its way out. Raises OSError (EBUSY)."""
    deadline = time.monotonic() + _POLITE_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return
