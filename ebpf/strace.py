"""strace as a way to fail, delay and interrupt system calls: what to run, and how to read what it writes.

It stops the process twice a call, so it is the last resort, for calls that no hook of the kernel reaches. Source:
strace(1), "Syscall Tampering". Only the standard library: the helper that runs strace imports this, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

STRACE = "/usr/bin/strace"
MAX_COUNT = 65535
"""strace keeps the numbers of `when=` in 16 bits."""

NOT_COVERED = (
    "processes that the traced ones did not start: those of a unit that starts again, others in its control group",
    "processes that somebody traces already (a debugger, another strace): the kernel allows one tracer",
    "calls that make no system call (vDSO: clock_gettime, gettimeofday, time, getcpu) and io_uring's operations",
    "set-user-ID programs that it executes while it is traced run without their privileges",
)
"""For `PlanNotes.not_covered`."""

WARNINGS = (
    "strace stops the process twice at each of these calls: tens of microseconds a call, in the target only",
    "strace counts per thread and per system call: first 5 of read and pread64 is up to 10 in each thread",
    "if strace itself is killed with SIGKILL in the middle of a failing call, that one call answers ENOSYS",
)
"""For `PlanNotes.warnings`."""


class When(Protocol):
    """A schedule, as :class:`node_agent.schedule.ScheduleValue` has it."""

    @property
    def kind(self) -> str: ...
    @property
    def a(self) -> float: ...
    @property
    def b(self) -> float: ...


class CannotDoError(ValueError):
    """strace cannot do what is asked; the text says what, and what it can."""


@dataclass(frozen=True)
class Tampering:
    """What happens to each chosen call: an error in its place, a wait before it (microseconds), a signal."""

    calls: tuple[str, ...]
    error: str = ""
    delay_us: int = 0
    signal: str = ""


def when_words(schedule: When) -> str:
    """The `when=` of a schedule; empty for always. Raises :class:`CannotDoError` where strace has none for it."""
    number = int(schedule.a)
    match schedule.kind:
        case "always":
            return ""
        case "ratio" if schedule.a == schedule.b:
            return ""
        case "every":
            largest, words = number, f"{number}+{number}"
        case "ratio" if schedule.a == 1:
            largest, words = int(schedule.b), f"{int(schedule.b)}+{int(schedule.b)}"
        case "after":
            largest, words = number + 1, f"{number + 1}+"
        case "first":
            largest, words = number + 1, f"1..{number}"
        case "probability":
            raise CannotDoError(
                "strace counts calls and has no dice; allowed: always, every, after, first, ratio:1/K"
            )
        case "burst":
            raise CannotDoError(
                "strace counts calls, not seconds; allowed: always, every, after, first, ratio:1/K"
            )
        case _:
            raise CannotDoError(
                "strace can do one call of every K; allowed: always, every, after, first, ratio:1/K"
            )
    if largest > MAX_COUNT:
        raise CannotDoError(f"strace counts to {MAX_COUNT}; allowed: smaller numbers")
    return words


def strace_argv(pids: Sequence[int], what: Tampering, schedule: When) -> tuple[str, ...]:
    """The command that tampers with these processes, their threads and what they start, until it is ended.

    Raises :class:`CannotDoError` for a name that is none, or where nothing would be done.
    """
    for call in what.calls:
        if not re.fullmatch(r"[a-z0-9_]+", call):
            raise CannotDoError(f"{call!r} is not the name of a system call")
    if not what.calls or not pids:
        raise CannotDoError("no system call or no process to tamper with")
    if not re.fullmatch(r"(E[A-Z0-9]+|[1-9]\d{0,3})?", what.error):
        raise CannotDoError(f"{what.error!r} is not an error")
    if not re.fullmatch(r"(SIG[A-Z0-9+-]+)?", what.signal):
        raise CannotDoError(f"{what.signal!r} is not a signal")
    acts = [f"error={what.error}"] if what.error else []
    acts += [f"delay_enter={what.delay_us}"] if what.delay_us > 0 else []
    acts += [f"signal={what.signal}"] if what.signal else []
    if not acts:
        raise CannotDoError("neither an error nor a delay nor a signal")
    when = when_words(schedule)
    names = ",".join(dict.fromkeys(what.calls))
    inject = ":".join((names, *acts, *((f"when={when}",) if when else ())))
    # Strings are cut to nothing: they would only cost time. --seccomp-bpf does not work with -p.
    return (
        STRACE, "-f", "-s", "0", "-e", f"trace={names}", "-e", f"signal={what.signal or 'none'}",
        "-e", f"inject={inject}", *(word for pid in pids for word in ("-p", str(pid))),
    )  # fmt: skip


_ENDED = re.compile(r"\) += (?P<answer>0x[0-9a-f]+|-?\d+|\?)(?P<rest>[^\"]*)$")
_MARKS = re.compile(r"\((INJECTED|DELAYED|INJECTED, DELAYED)\)")
_SIGNAL = re.compile(r"^(\[pid +\d+\] )?--- (?P<name>SIG[A-Z0-9+-]+) \{.*si_code=SI_KERNEL")
_ATTACHED = re.compile(r"^(\S*/)?strace: Process (?P<pid>\d+) attached")
_REFUSED = re.compile(r"^(\S*/)?strace: (?P<why>.*)$")


class Counting:
    """What strace has written so far, line by line."""

    def __init__(self, signal: str = "") -> None:
        self.attached: set[int] = set()
        self.complaints: list[str] = []
        self._signal = signal
        self._marked = 0
        self._counts = {"seen": 0, "failed": 0, "delayed": 0, "signalled": 0}

    def counters(self) -> dict[str, int]:
        """`hits`: calls that were tampered with; `seen`: all calls of these names that have ended."""
        return {"hits": max(self._marked, self._counts["signalled"]), **self._counts}

    def take(self, line: str) -> None:
        """One line of its standard error, without the line feed."""
        attached, ended, signal = _ATTACHED.match(line), _ENDED.search(line), _SIGNAL.match(line)
        if attached:
            self.attached.add(int(attached["pid"]))
        elif refused := _REFUSED.match(line):
            self.complaints = [*self.complaints, refused["why"]][-5:]
        elif signal and signal["name"] == self._signal:
            self._counts["signalled"] += 1
        elif ended:
            self._ended(ended["rest"])

    def _ended(self, rest: str) -> None:
        # What stands in quotes is the target's own, such as a path that looks like an answer.
        marks = " ".join(_MARKS.findall(rest))
        self._counts["seen"] += 1
        self._counts["failed"] += "INJECTED" in marks
        self._counts["delayed"] += "DELAYED" in marks
        self._marked += bool(marks)
