"""A process that uses up memory. Run as a script by an injection.

Its first line of standard input is JSON: `mode` and what that takes. It says `ready` when it has got there,
answers each further line with its counters as JSON, and ends with its standard input. Only the standard library.

hold: takes memory until no more than `leave_kib` are available, gives back where others need more, and takes
again. exhaust: takes memory until the kernel has killed somebody, then gives all back. thrash: touches `size_kib`
in turn, in a control group of its own that may have no more than `high_kib` in RAM.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import sys
import time
from typing import Any

PAGE, CHUNK_KIB = 4096, 4096
SMALL_KIB, NEAR_KIB = 1024, 65536
"""The last chunks before memory runs out are small, so that not much is taken after the kernel has killed."""

ASK_AFTER_S = 5.0
"""As long as the kernel can take pages of programs from memory that these read again at once, it takes its time
before it kills, minutes on a small machine. After so long it is told to (Documentation/admin-guide/sysrq.rst, f).
"""

MAP_LOCKED = 0x2000
"""include/uapi/asm-generic/mman.h: these pages are never swapped, so they are really held."""

_MCL_CURRENT = 1
_TURN_S = 0.1
_AT_ONCE = 256
_FIRST = 1000


def available_kib() -> int:
    """What programs can have without swapping (proc_meminfo(5))."""
    return number_of("/proc/meminfo", "MemAvailable:")


def number_of(path: str, key: str) -> int:
    """The number after a word, in a file of lines."""
    with open(path) as file:  # noqa: PTH123  (pathlib takes longer to import than all of this)
        return next((int(line.split()[1]) for line in file if line.split()[:1] == [key]), 0)


def took(kib: int) -> mmap.mmap | None:
    """So much memory, locked and with all its pages; None where the kernel does not give it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE | MAP_LOCKED
    try:
        return mmap.mmap(-1, kib << 10, flags=flags)
    except OSError:
        return None


def go_first(score: int) -> None:
    """When memory runs out the kernel is to kill this process before any other but one that is marked, too."""
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(str(score))


def stay_in_memory() -> None:
    """Lock this program itself: it has to be faster than those whose pages the kernel takes back meanwhile."""
    ctypes.CDLL(None).mlockall(_MCL_CURRENT)


class Answering:
    """Standard input: each line is a question; at its end this process has no business any more."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}

    def goes_on(self, seconds: float) -> bool:
        """Answer what is asked within so many seconds; False at the end."""
        if not select.select([0], [], [], seconds)[0]:
            return True
        asked = os.read(0, 65536)
        for _ in range(asked.count(b"\n")):
            print(json.dumps(self.counters), flush=True)
        return bool(asked)


def hold(wanted: dict[str, Any], answering: Answering) -> None:
    """Keep so little available, and no less."""
    leave, chunks, ready = int(wanted["leave_kib"]), [], False
    go_first(_FIRST)
    while True:
        over = available_kib() - leave
        if over >= CHUNK_KIB:
            chunk = took(min(CHUNK_KIB, over))
            if chunk is not None:
                chunks.append(chunk)
        elif over < 0 and chunks:
            chunks.pop().close()
        moving = over >= CHUNK_KIB or (over < 0 and bool(chunks))
        answering.counters = {"held_kib": sum(len(c) for c in chunks) >> 10, "available_kib": over + leave}
        if not moving and not ready:
            ready = True
            print("ready", flush=True)
        if not answering.goes_on(0 if moving else _TURN_S):
            return


def exhaust(wanted: dict[str, Any], answering: Answering) -> None:
    """Have a child take all until the kernel kills. The child may be killed, too, beside the victim."""
    before, parent = number_of("/proc/vmstat", "oom_kill"), os.getpid()
    told, tell = os.pipe()
    if (child := os.fork()) == 0:
        held, asked = fill(before, parent)
        os.write(tell, f"{held} {asked}".encode())
        os._exit(0)
    os.close(tell)
    stay_in_memory()
    while not os.waitpid(child, os.WNOHANG)[0]:
        if not answering.goes_on(_TURN_S):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
    if number_of("/proc/vmstat", "oom_kill") == before:
        sys.exit("it has ended although the kernel has killed nobody")
    said = os.read(told, 100).split()
    answering.counters = (
        dict(zip(("held_kib", "asked_for"), map(int, said), strict=True)) if said else {"killed_too": 1}
    )
    print("ready", flush=True)
    while answering.goes_on(3600):
        pass


def fill(before: int, parent: int) -> tuple[int, int]:
    """Take memory until the kernel has killed more than `before`: KiB that were held, and whether it was asked."""
    # Its oom_score_adj stays 0: no such process comes before a marked one, and of the others this has most memory.
    stay_in_memory()
    chunks, near, asked = [], 0.0, 0
    while number_of("/proc/vmstat", "oom_kill") == before and os.getppid() == parent:
        is_near = available_kib() <= NEAR_KIB
        near = near or (time.monotonic() if is_near else 0.0)
        if near and time.monotonic() - near > ASK_AFTER_S:
            asked, near = 1, time.monotonic()
            with open("/proc/sysrq-trigger", "w") as trigger:  # noqa: PTH123
                trigger.write("f")
            # It works on that later, without a look at who has been killed meanwhile: nothing is taken now.
            _wait_for_a_kill(before)
            continue
        chunk = took(SMALL_KIB if is_near else CHUNK_KIB)
        if chunk is not None:
            chunks.append(chunk)
    held = sum(len(c) for c in chunks) >> 10
    for chunk in chunks:
        chunk.close()
    return held, asked


def _wait_for_a_kill(before: int) -> None:
    deadline = time.monotonic() + ASK_AFTER_S
    while number_of("/proc/vmstat", "oom_kill") == before and time.monotonic() < deadline:
        time.sleep(_TURN_S)


def thrash(wanted: dict[str, Any], answering: Answering) -> None:
    """Touch more than there may be."""
    go_first(_FIRST)
    with open("/proc/self/cgroup") as file:  # noqa: PTH123
        group = next(line.strip()[3:] for line in file if line.startswith("0::"))
    with open(f"{wanted['root']}{group}/memory.high", "w") as file:  # noqa: PTH123
        file.write(str(int(wanted["high_kib"]) << 10))
    size = int(wanted["size_kib"]) << 10
    area, passes, first = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0, 1
    while True:
        for at in range(0, size, _AT_ONCE * PAGE):
            end = min(size, at + _AT_ONCE * PAGE)
            # Never zero: the kernel keeps pages of zeros without writing them to swap.
            area[at:end:PAGE] = bytes((first,)) * ((end - at) // PAGE)
            if not answering.goes_on(0):
                return
        passes, first = passes + 1, first % 255 + 1
        answering.counters = {"passes": passes}
        if passes == 1:
            print("ready", flush=True)


MODES = {"hold": hold, "exhaust": exhaust, "thrash": thrash}


def main() -> int:
    """Until standard input ends."""
    line = b""
    while not line.endswith(b"\n"):  # no more than the line: what is asked later comes through select
        piece = os.read(0, 1)
        if not piece:
            return 0
        line += piece
    wanted = json.loads(line)
    MODES[wanted["mode"]](wanted, Answering())
    return 0


if __name__ == "__main__":
    sys.exit(main())
