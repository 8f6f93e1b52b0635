"""A process that kills the main process of a unit of systemd again and again, some time after each start.

Its first line of standard input is JSON: `unit`, `folder` of its control group, `after_s`, `signal` by number, and
`count`, 0 for no limit. It answers each further line with its counters, and ends with its standard input. Only the
standard library.

systemctl(1) costs a process, so it is asked only when the control group has processes and the one it named has
ended; between, the kernel says when a process ends (pidfd_open(2)).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

TURN_S = 0.1
ASK_S = 0.5
AGAIN_S = 2.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


@dataclass
class Victim:
    """A main process, by descriptor. `due`: when it is to be killed, in seconds since boot; `shot`: it was."""

    pid: int
    fd: int
    due: float
    shot: bool = False

    def has_ended(self) -> bool:
        return bool(select.select([self.fd], [], [], 0)[0])


def main_pid(unit: str) -> int:
    """The main process by systemd; 0 where there is none, or nobody answers."""
    argv = ("systemctl", "show", "--property=MainPID", "--value", "--", unit)
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False, env=_ENVIRONMENT)
        return int(done.stdout.strip() or 0)
    except (subprocess.TimeoutExpired, ValueError):
        return 0


def catch(pid: int, after_s: float) -> Victim | None:
    """That process, if it lives, to be killed so long after its start."""
    if pid <= 1:  # systemd says 0 while there is none, and kill(2) takes that for ourselves
        return None
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            started = int(file.read().rpartition(")")[2].split()[19])
        return Victim(pid, fd, started / os.sysconf("SC_CLK_TCK") + after_s)
    return None


def populated(folder: str) -> bool:
    """Whether the control group has a process."""
    with suppress(OSError), open(f"{folder}/cgroup.procs") as file:  # noqa: PTH123
        return bool(file.read(1))
    return False


@dataclass
class Crasher:
    """Kills, and counts. `starts` are the main processes it has seen, `kills` those it has shot at."""

    unit: str
    folder: str
    after_s: float
    number: int
    count: int
    kills: int = 0
    starts: int = 0
    victim: Victim | None = None
    asked: float = 0.0

    @property
    def is_over(self) -> bool:
        return bool(self.count) and self.kills >= self.count

    def turn(self) -> None:
        """Look after the unit once."""
        if self.victim is not None and self.victim.has_ended():
            os.close(self.victim.fd)
            self.victim = None
        if self.victim is None and populated(self.folder) and time.monotonic() - self.asked >= ASK_S:
            self.victim = catch(main_pid(self.unit), self.after_s)
            self.asked = time.monotonic() if self.victim is None else 0.0
            self.starts += self.victim is not None
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self.victim is not None and now >= self.victim.due:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.victim.fd, self.number)
                self.kills += not self.victim.shot
            # One that survives a signal which it can handle gets it again, and so does one that takes long to die.
            self.victim.shot, self.victim.due = True, now + max(self.after_s, AGAIN_S)


def main() -> int:
    """Kill until standard input ends."""
    wanted = json.loads(sys.stdin.readline())
    one = Crasher(wanted["unit"], wanted["folder"], wanted["after_s"], wanted["signal"], wanted["count"])
    print("ready", flush=True)
    while True:
        if not one.is_over:
            one.turn()
        if select.select([0], [], [], TURN_S)[0]:
            if not os.read(0, 4096):
                return 0
            print(json.dumps({"counters": {"kills": one.kills, "starts": one.starts}}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
