"""A process that keeps values in files of control groups, also in those that are made anew by a restart.

Its first line of standard input is JSON: `values`, what each file should say; `switches`, files that must have
`controller` on for that, the highest first; with `pause_s` and `run_s` the values stand for so long, and `rest`
for so long, in turn. `stop` has pairs of a process and its start time, which SIGSTOP and SIGCONT stop and continue
in that time. `inside` has pairs of a control group and one in it: what runs in the first, and is no process that
pid 1 is just starting, is moved to the second.

It answers each further line with its counters, and ends with its standard input. Only the standard library.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

TURN_S = 0.1
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""PermissionError: a file that control groups do not have cannot be made."""


@dataclass
class Keeper:
    """What is to be kept, and how often it was set: "followed" in a control group that was made anew.

    `seen` is which control group each file was last set in, 0 for none.
    """

    values: Mapping[str, str]
    switches: Sequence[str] = ()
    controller: str = ""
    rest: str = ""
    descriptors: Sequence[int] = ()
    inside: Sequence[tuple[str, str]] = ()
    seen: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=lambda: {"pauses": 0, "followed": 0, "set_again": 0})

    def hold(self) -> None:
        """Set what does not say what it should."""
        for folder, group in self.inside:
            gather(folder, group)
        for path, value in self.values.items():
            found = read(path)
            if found == value:
                continue
            here = identity(path)
            if not here:
                self.seen[path] = 0
                continue
            for switch in self.switches:
                if self.controller not in read(switch).split():
                    write(switch, f"+{self.controller}")
            if write(path, value):
                self.counters["set_again" if self.seen.get(path) == here else "followed"] += 1
                self.seen[path] = here

    def pause(self, on: bool) -> None:
        """Set them all, or let them rest."""
        self.counters["pauses"] += on
        for path, value in self.values.items():
            self.seen[path] = identity(path) if write(path, value if on else self.rest) else 0
        for fd in self.descriptors:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGSTOP if on else signal.SIGCONT)


def identity(path: str) -> int:
    """The number of the folder that a file is in; no two control groups ever have the same. 0: it is gone."""
    with suppress(OSError):
        return os.stat(os.path.dirname(path)).st_ino  # noqa: PTH116, PTH120
    return 0


def read(path: str) -> str:
    """What a file says; empty where it is gone."""
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:  # gone, or its control group is on its way out (ENODEV)
        return ""


def write(path: str, text: str) -> bool:
    """Whether the file took it."""
    try:
        fd = os.open(path, os.O_WRONLY)
    except _GONE:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def gather(folder: str, group: str) -> None:
    """Move what runs in a control group itself to the one in it, which is made for that.

    pid 1 waits for what it starts to become its program; frozen before, it would stop all of the system.
    """
    pids = read(f"{folder}/cgroup.procs").split()
    ready = [pid for pid in pids if program(pid) not in ("", program("1")) and not starts(program(pid))]
    if ready:
        with suppress(OSError):
            os.makedirs(group, exist_ok=True)  # noqa: PTH103
    for pid in ready:
        write(f"{group}/cgroup.procs", pid)


def program(pid: str) -> str:
    """Its path; empty for one that has ended."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    return ""


def starts(path: str) -> bool:
    """Whether it is what systemd sets up a process with, before that becomes its program."""
    return path.endswith("/systemd-executor")


def open_processes(wanted: Sequence[tuple[int, int]]) -> list[int]:
    """Descriptors of those that are still the same: started at that tick (proc_pid_stat(5), field 22)."""
    found = []
    for pid, started in wanted:
        with suppress(OSError):  # gone; EINVAL: just going
            fd = os.pidfd_open(pid)
            words = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            if words and int(words[19]) == started:
                found.append(fd)
            else:
                os.close(fd)
    return found


def main() -> int:
    """Keep until standard input ends."""
    wanted: dict[str, Any] = json.loads(sys.stdin.readline())
    keeper = Keeper(
        wanted["values"], wanted.get("switches", ()), wanted.get("controller", ""), wanted.get("rest", ""),
        open_processes(wanted.get("stop", ())), wanted.get("inside", ()),
    )  # fmt: skip
    spans = (float(wanted.get("run_s", 0)), float(wanted.get("pause_s", 0)))
    on = True
    keeper.pause(on)
    turns_at = time.monotonic() + spans[1] if spans[0] else float("inf")
    print("ready", flush=True)
    while True:
        if on:
            keeper.hold()
        rest = max(0.0, turns_at - time.monotonic())
        if select.select([0], [], [], min(TURN_S, rest))[0]:
            if not os.read(0, 4096):
                return 0
            print(json.dumps({"counters": keeper.counters, "on": on}), flush=True)
        if time.monotonic() >= turns_at:
            on = not on
            keeper.pause(on)
            turns_at += spans[on]


if __name__ == "__main__":
    sys.exit(main())
