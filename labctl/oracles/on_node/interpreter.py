"""Runs programs as they are asked for, each in a child that has loaded already what most of them need.

To start an interpreter takes an emulated node a second or more, and a look runs many programs at once. Asks and
answers are lines of JSON. It ends with its input, and its children with it; and when it has been idle for a while.
"""

from __future__ import annotations

import contextlib
import hashlib  # noqa: F401 - loaded for the children, as are others
import json
import os
import re  # noqa: F401
import selectors
import signal
import subprocess  # noqa: F401
import sys
import threading  # noqa: F401
import time
import traceback
from pathlib import Path  # noqa: F401
from typing import Any

CHUNK = 1 << 16


class Child:
    """One program that runs, and what it has said so far."""

    def __init__(self, ask: dict[str, Any]) -> None:
        self.number = ask["number"]
        self.said = {"stdout": b"", "stderr": b""}
        out, err = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            perform(ask, out[1], err[1])
        with contextlib.suppress(OSError):  # the child does so, too: whoever comes first
            os.setpgid(self.pid, self.pid)
        os.close(out[1])
        os.close(err[1])
        self.ends = {out[0]: "stdout", err[0]: "stderr"}
        for fd in self.ends:
            os.set_blocking(fd, False)
        self.over = os.pidfd_open(self.pid)

    def read(self, fd: int) -> bytes | None:
        """Take what there is; nothing at all at its end, None where there is nothing yet."""
        try:
            text = os.read(fd, CHUNK)
        except BlockingIOError:
            return None
        self.said[self.ends[fd]] += text
        return text

    def answer(self) -> bytes:
        """What it said and how it ended, once it has."""
        _, status = os.waitpid(self.pid, 0)
        for fd in self.ends:
            while self.read(fd):
                pass
            os.close(fd)
        os.close(self.over)
        said = {name: text.decode(errors="replace") for name, text in self.said.items()}
        return (
            json.dumps({"number": self.number, "status": os.waitstatus_to_exitcode(status), **said}).encode()
            + b"\n"
        )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def perform(ask: dict[str, Any], out: int, err: int) -> None:
    """In the child: run the program, and end."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["-", ask["given"]]
        exec(compile(ask["program"], "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102
        sys.stdout.flush()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - as an interpreter of its own would
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def serve(idle_s: float) -> None:
    """Until the input ends, or nothing has run for a while."""
    children: dict[int, Child] = {}  # by each descriptor
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    asked = b""
    busy = time.monotonic()
    try:
        while children or time.monotonic() < busy + idle_s:
            for key, _ in waiting.select(idle_s):
                if key.fd == 0:
                    text = os.read(0, CHUNK)
                    if not text:
                        return
                    *lines, asked = (asked + text).split(b"\n")
                    for line in lines:
                        child = Child(json.loads(line))
                        for fd in (*child.ends, child.over):
                            children[fd] = child
                            waiting.register(fd, selectors.EVENT_READ)
                    continue
                if key.fd not in children:
                    continue  # of a child that was answered for in this turn
                child = children[key.fd]
                if key.fd != child.over:
                    if child.read(key.fd) == b"":
                        waiting.unregister(key.fd)
                    continue
                for fd in (*child.ends, child.over):
                    del children[fd]
                    with contextlib.suppress(KeyError):
                        waiting.unregister(fd)
                send(child.answer())
                busy = time.monotonic()
    finally:
        for child in {*children.values()}:
            child.kill()


def send(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


if __name__ == "__main__":
    serve(float(sys.argv[1]))
