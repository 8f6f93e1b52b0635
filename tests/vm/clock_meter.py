"""A meter of a node's clocks: a program there that is asked over one connection, against this machine's clock."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labctl.lab.model import Node
from tests.lab import ssh_argv

_PROGRAM = """
import ctypes, sys, time
class Timex(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint)]
    _fields_ += [(n, ctypes.c_long) for n in ("offset", "freq", "maxerror", "esterror")]
    _fields_ += [("status", ctypes.c_int)]
    _fields_ += [(n, ctypes.c_long) for n in ("constant", "precision", "tolerance", "sec", "usec", "tick")]
    _fields_ += [("rest", ctypes.c_int * 40)]
def adjtimex(**values):
    request = Timex(**values)
    assert ctypes.CDLL(None).adjtimex(ctypes.byref(request)) >= 0
    return request
for line in sys.stdin:
    words = line.split()
    if words[0] == "sync":
        adjtimex(modes=0x401E, status=1, maxerror=20000, esterror=3000, freq=-777777, tick=10001)
    if words[0] == "step":
        time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + float(words[1]))
    now = adjtimex()
    clocks = (time.CLOCK_REALTIME, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC_RAW)
    print(*map(time.clock_gettime, clocks), now.tick, now.freq, now.status, now.maxerror, flush=True)
"""


@dataclass(frozen=True)
class Reading:
    """Clocks in seconds: how far the node's is ahead of ours, and the node's own. `doubt_s`: how long it took."""

    ahead_s: float
    doubt_s: float
    ours_s: float
    boot_s: float
    raw_s: float
    tick_us: int
    freq: int
    status: int
    max_error_us: int

    @property
    def kernel(self) -> tuple[int, int, int]:
        """What adjtimex says of rate and trust."""
        return self.tick_us, self.freq, self.status


class ClockMeter:
    """Asks the program on one node."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, words: str = "read") -> Reading:
        """The quickest of some answers. `sync`: as with a time service that is content; `step N`: by hand."""
        found = [self._once(words), *(self._once("read") for _ in range(4))]
        return min(found[-4:], key=lambda one: one.doubt_s)

    def _once(self, words: str) -> Reading:
        assert self._process.stdin is not None and self._process.stdout is not None
        sent, began = time.time(), time.monotonic()
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().split()
        took = time.monotonic() - began
        wall, boot, raw, *kernel = said
        tick, freq, status, error = map(int, kernel)
        middle = sent + took / 2
        return Reading(float(wall) - middle, took, middle, float(boot), float(raw), tick, freq, status, error)


@contextmanager
def clock_meter(node: Node) -> Iterator[ClockMeter]:
    """The meter of a node, as long as the connection lives."""
    words = ssh_argv(node, "python3", "-u", "-c", "'" + _PROGRAM.replace("'", '"') + "'")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield ClockMeter(process)
        process.terminate()
