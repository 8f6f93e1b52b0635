"""Which calls transfer less than asked, and the count of them. Only the standard library: a helper uses this."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CALLS: Mapping[str, Mapping[str, int]] = {
    "read": {"read": 0, "pread64": 17, "recvfrom": 45},
    "write": {"write": 1, "pwrite64": 18, "sendto": 44},
}
"""Calls whose third argument is a count of bytes, by operation, with their numbers on x86-64."""

BACKEND = "ptrace"

NOT_COVERED = (
    "readv, preadv, preadv2, recvmsg, recvmmsg, writev, pwritev, pwritev2, sendmsg, sendmmsg: their counts are in "
    "the memory of the target",
    "sendfile, splice, copy_file_range, io_uring, AIO, mapped files",
    "32-bit programs",
)
"""For `PlanNotes.not_covered`."""

STARTED_BY_OTHERS = (
    "processes that the traced ones did not start: those of a unit that starts again, others in its control group"
)
STARTED = "processes that the target starts (--tree has them)"

WARNINGS = (
    "the target stops twice at every system call of any kind: tens of microseconds a call, a tenth of a "
    "millisecond for one that is shortened, in the target only; a millisecond in an emulated guest",
    "calls that wait may answer EINTR once when tracing begins, as after SIGSTOP and SIGCONT: epoll_wait for one",
    "a call that is under way when the tracer itself is killed by SIGKILL keeps its smaller count, and the third "
    "argument's register (rdx) with it",
)
"""For `PlanNotes.warnings`."""

DATAGRAMS = "of a datagram what exceeds the smaller count is lost: recvfrom drops it, sendto never sends it"
LOADER = (
    "programs that are executed meanwhile may not start: their loader reads the first 832 bytes of each library "
    "in one call and does not go on"
)
LOADER_BYTES = 832
UNALIGNED = "files opened with O_DIRECT answer EINVAL unless max_bytes is a multiple of their block size"
NO_PROGRESS = "writes that answer 0 again and again: many programs try for ever, at full speed"

_SAMPLES = 32
_BETWEEN_SAMPLES_NS = 1_000_000


@dataclass(frozen=True)
class Schedule:
    """Which of the matching calls, as ebpf/include/schedule.h has it."""

    kind: str = "always"
    a: float = 0
    b: float = 0
    seed: int = 0

    def picks(self, n: int, since_ns: int) -> bool:
        """Whether call number `n`, from 0, bites, `since_ns` after the fault was armed."""
        a, b = int(self.a), int(self.b)
        match self.kind:
            case "always":
                return True
            case "probability":
                return mixed(self.seed + n) >> 32 < round(self.a * 2**32)
            case "every":
                return (n + 1) % a == 0
            case "after":
                return n >= a
            case "first":
                return n < a
            case "burst":
                return since_ns % ((a + b) * 10**9) < a * 10**9
            case "ratio":
                return (n % b + 1) * a // b != n % b * a // b
        raise ValueError(f"{self.kind!r} is not a schedule")


_64 = 2**64 - 1


def mixed(x: int) -> int:
    """splitmix64's finisher (Steele, Lea, Flood 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _64
    return x ^ (x >> 31)


class Judge:
    """Decides about each call, counts, and keeps the latest hits. Asked by one thread, read by another."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        wanted = CALLS if given["operation"] == "any" else {given["operation"]: CALLS[given["operation"]]}
        self.calls = {number: name for calls in wanted.values() for name, number in calls.items()}
        self.max_bytes = int(given["max_bytes"])
        self._kinds = ("regular", "pipe", "socket", "device") if given["kind"] == "any" else (given["kind"],)
        kind, a, b = given["schedule"]
        self._schedule = Schedule(kind, a, b, int(given["seed"]))
        self._armed_ns = time.monotonic_ns()
        self._counts = dict.fromkeys(("hits", "seen", "matched", "injected", "suppressed_by_schedule"), 0)
        self._samples: deque[dict[str, Any]] = deque(maxlen=_SAMPLES)
        self._sampled_ns = 0
        self._lock = threading.Lock()

    def wants(self, count: int, kind: Callable[[], str]) -> bool:
        """Whether this call, of one of `calls`, is to transfer `max_bytes` at most."""
        fits = count > self.max_bytes and kind() in self._kinds
        with self._lock:
            ticket = self._counts["matched"]
            self._counts["seen"] += 1
            if not fits:
                return False
            self._counts["matched"] += 1
            bites = self._schedule.picks(ticket, time.monotonic_ns() - self._armed_ns)
            self._counts["injected" if bites else "suppressed_by_schedule"] += 1
            return bites

    def ended(self, tid: int, number: int, fd: int, count: int, answer: int) -> None:
        """A call that was shortened has ended: a hit where it transferred all that it was let."""
        if answer < self.max_bytes:
            return
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sample = None
        if now - self._sampled_ns >= _BETWEEN_SAMPLES_NS:
            self._sampled_ns = now
            sample = {
                "time_us": now // 1000, "tid": tid, "call": self.calls[number], "answer": f"{answer} of {count}",
                **_who(tid), "where": _where(tid, fd),
            }  # fmt: skip
        with self._lock:
            self._counts["hits"] += 1
            if sample is not None:
                self._samples.append({"sequence": self._counts["hits"], **sample})

    def counters(self) -> dict[str, int]:
        """`hits`, and what the rule table counts, too."""
        with self._lock:
            return dict(self._counts)

    def samples(self) -> list[dict[str, Any]]:
        """The latest hits, oldest first: fields of :class:`node_agent.fault.Hit`."""
        with self._lock:
            return list(self._samples)


def _who(tid: int) -> dict[str, Any]:
    try:
        with open(f"/proc/{tid}/status", errors="replace") as file:  # noqa: PTH123  (the target waits)
            status = dict(line.rstrip("\n").partition(":\t")[::2] for line in file)
    except OSError:
        return {"pid": 0, "comm": ""}
    return {"pid": int(status.get("Tgid", 0)), "comm": status.get("Name", "")}


def _where(tid: int, fd: int) -> str:
    try:
        return os.readlink(f"/proc/{tid}/fd/{fd}").encode(errors="backslashreplace").decode()  # noqa: PTH115
    except OSError:
        return ""
