"""A process that uses up what is counted, or keeps a limit where it was set. Run as a script by an injection.

Its first line of standard input is JSON: `mode` and what that takes. It says `ready` when it has got there,
answers each further line with its counters as JSON, and ends with its standard input. Only the standard library.

threads: starts threads as long as the system may have more than `leave` of them. files: opens files as user `uid`
until the system may have no more. keep: writes `limits` (by path) again, where their control group was made anew:
where its number is no longer `inode`.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import sys
import threading
import time
from typing import Any

_TURN_S = 0.1
_STACK = 65536
_SETTLES_S = 3.0
"""A service manager writes its own limits just after it has made a control group."""


def text_of(path: str) -> str:
    """A file of one line."""
    with open(path) as file:  # noqa: PTH123  (pathlib takes longer to import than all of this)
        return file.read().strip()


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


def threads(wanted: dict[str, Any], answering: Answering) -> None:
    """What others give back is taken, too; what they need more is theirs as long as there is any."""
    threading.stack_size(_STACK)
    forever, held, ready = threading.Event(), 0, False
    while True:
        there = int(text_of("/proc/loadavg").split()[3].split("/")[1])
        room = int(text_of("/proc/sys/kernel/threads-max")) - there - int(wanted["leave"])
        for _ in range(max(0, room)):
            try:
                threading.Thread(target=forever.wait, daemon=True).start()
            except RuntimeError:  # EAGAIN: somebody else was faster
                break
            held += 1
        answering.counters = {"held": held}
        if room <= 0 and not ready:
            ready = True
            print("ready", flush=True)
        if not answering.goes_on(_TURN_S if room <= 0 else 0):
            os._exit(0)  # without waiting for the threads


def files(wanted: dict[str, Any], answering: Answering) -> None:
    """As a user who is not root: root may have more files than there may be."""
    most = int(text_of("/proc/sys/fs/nr_open"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setresgid(wanted["gid"], wanted["gid"], wanted["gid"])
    os.setresuid(wanted["uid"], wanted["uid"], wanted["uid"])
    held, refused, ready = 0, 0, False
    while True:
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
                held += 1
        except OSError as error:
            if error.errno != errno.ENFILE:
                raise
            refused += 1
        answering.counters = {"held": held, "refused": refused}
        if not ready:
            ready = True
            print("ready", flush=True)
        if not answering.goes_on(_TURN_S):
            return


def keep(wanted: dict[str, Any], answering: Answering) -> None:
    """A limit that somebody has changed in the same control group is his business."""
    limits: dict[str, str] = wanted["limits"]
    known = dict.fromkeys(limits, int(wanted["inode"]))
    since = dict.fromkeys(limits, 0.0)
    answering.counters = {"renewed": 0}
    print("ready", flush=True)
    while answering.goes_on(_TURN_S):
        for path, value in limits.items():
            now = made(path)
            if now and now != known[path]:
                known[path], since[path] = now, time.monotonic()
            if now and time.monotonic() - since[path] < _SETTLES_S and since[path]:
                answering.counters["renewed"] += renew(path, value)


def made(path: str) -> int:
    """Which file it is, by the number of its control group; 0 where there is none."""
    try:
        return os.stat(os.path.dirname(path)).st_ino  # noqa: PTH116, PTH120
    except OSError:
        return 0


def renew(path: str, value: str) -> int:
    """1 where it had to be written."""
    try:
        if text_of(path) == value:
            return 0
        with open(path, "w") as file:  # noqa: PTH123
            file.write(value)
    except OSError:  # the group is gone again
        return 0
    return 1


MODES = {"threads": threads, "files": files, "keep": keep}


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
