"""Runs on a node: makes system calls when it is asked to, and says what each answered.

Asked and answering through two mapped files, because those need no memory from the kernel once they are mapped:
`ask` has a line "NUMBER NAME COUNT self|child", `answer` gets "NUMBER ANSWER=COUNT …". Knows nothing of faults.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

SIZE = 4096
PIPE = 65536
FUTEX, FUTEX_WAKE, PRIVATE = 202, 1, 128  # x86-64

libc = ctypes.CDLL(None, use_errno=True)
place = Path(sys.argv[1])
word = ctypes.c_int()
block = b"x" * PIPE
sink = ctypes.create_string_buffer(PIPE)


def mapped(name: str) -> mmap.mmap:
    path = place / name
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        found = mmap.mmap(file.fileno(), SIZE)
    found[:] = bytes(SIZE)
    return found


def eventfd() -> int:
    found: int = libc.eventfd(0, 0)
    if found >= 0:
        libc.close(found)
    return found


def pipe() -> int:
    """A whole pipe full, through a new pipe, whose pages are all new."""
    ends = (ctypes.c_int * 2)()
    if libc.pipe(ends) < 0:
        return -1
    written: int = libc.write(ends[1], block, PIPE)
    code = ctypes.get_errno()
    libc.close(ends[0])
    libc.close(ends[1])
    ctypes.set_errno(code)
    return written if written in (-1, PIPE) else -2


def main() -> None:
    asked, answered = mapped("ask"), mapped("answer")
    descriptor = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    calls: dict[str, Callable[[], int]] = {
        "eventfd": eventfd,
        "pipe": pipe,
        "fsync": lambda: libc.fsync(descriptor),
        "futex": lambda: libc.syscall(FUTEX, ctypes.byref(word), FUTEX_WAKE, 1, None, None, 0),
        "private-futex": lambda: libc.syscall(FUTEX, ctypes.byref(word), FUTEX_WAKE | PRIVATE, 1, None, None, 0),
    }

    def answer(number: str, name: str, count: int) -> None:
        tally: dict[str, int] = {}
        for _ in range(count):
            ctypes.set_errno(0)
            result = calls[name]()
            said = "well" if result >= 0 else "short" if result == -2 else errno.errorcode[ctypes.get_errno()]
            tally[said] = tally.get(said, 0) + 1
        line = f"{number} {' '.join(f'{k}={v}' for k, v in sorted(tally.items()))}\n".encode()
        answered[: len(line) + 1] = line + b"\0"

    for name in calls:  # so that what Python needs once is there
        answer("0", name, 3)
    last = b""
    while True:
        line = asked[: asked.find(b"\0")].split(b"\n")[0]
        if line != last:
            last = line
            number, name, count, who = line.decode().split()
            if who == "self":
                answer(number, name, int(count))
            elif os.fork() == 0:
                answer(number, name, int(count))
                os._exit(0)
            else:
                os.wait()
        time.sleep(0.02)


main()
