"""Processes, links and control groups of the test bed on this machine: made, and taken away without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from labctl.errors import LabError
from labctl.lab.files import tail
from tests.kubernetes.bed.settings import API, BRIDGE, PREFIX

T = TypeVar("T")
CGROUPS = Path("/sys/fs/cgroup")
STEP_S = 0.1


def wait_for(what: str, look: Callable[[], T], timeout_s: float, why: Callable[[], str] = str) -> T:
    """Look again and again until it is true, and give it back. Raises LabError at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {timeout_s:g} s {why()}".rstrip())
        time.sleep(STEP_S)
    return found


def ip(*argv: str, check: bool = True) -> bool:
    """Run ip(8); whether it succeeded."""
    done = subprocess.run(("ip", *argv), capture_output=True, text=True, timeout=30)
    if check and done.returncode != 0:
        raise LabError(f"ip {' '.join(argv)}: {done.stderr.strip()}")
    return done.returncode == 0


def make_bridge() -> None:
    """The wire between the nodes and this machine. Raises LabError where the machine uses these addresses."""
    routes = subprocess.run(("ip", "route", "get", API), capture_output=True, text=True, timeout=30).stdout
    if f"dev {BRIDGE}" not in routes and " via " not in routes and "unreachable" not in routes and routes:
        raise LabError(f"{API} is taken on this machine: {routes.strip()}")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("address", "add", f"{API}/{PREFIX}", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def remove_bridge() -> None:
    """The bridge, where it is there; the nodes' ends of the wires went with their namespaces."""
    ip("link", "delete", BRIDGE, check=False)


class Process:
    """A program of the bed. It ends with the process that started it, whatever becomes of that."""

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                ("setpriv", "--pdeathsig", "KILL", "--", *argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its number, also of the program that setpriv became."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs. Raises LabError with its last words where it has ended."""
        if self._process.poll() is not None:
            raise LabError(f"{self.name} has ended with {self._process.returncode}: {tail(self.log)}")
        return True

    def children(self) -> list[int]:
        """Its children."""
        with contextlib.suppress(OSError):
            return [int(w) for w in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def end(self, first: signal.Signals = signal.SIGTERM, patience_s: float = 5.0) -> None:
        """End it, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(first)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)


def hierarchies() -> list[Path]:
    """Where control groups are mounted: those of version 1, and version 2 beside them.

    Raises LabError where there is version 2 only, with which this Kubernetes was never tried.
    """
    found = [
        path for path in sorted(CGROUPS.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()
    ]
    if (CGROUPS / "cgroup.controllers").exists() or not found:
        raise LabError(
            "the test bed wants control groups of version 1", "boot with systemd.unified_cgroup_hierarchy=0"
        )
    return found


def make_groups(name: str) -> None:
    """The control group of a node in each hierarchy: the kubelet takes none that is missing in one."""
    for root in hierarchies():
        group = root / name.strip("/")
        group.mkdir(exist_ok=True)
        if (root / "cpuset.cpus").exists():
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((root / file).read_text())


def remove_groups(name: str) -> None:
    """The control groups below that of a node, and it, where they are there; nobody may be in them any more."""
    for root in hierarchies():
        top = root / name.strip("/")
        for directory, _, _ in os.walk(top, topdown=False):
            wait_for(f"{directory} is empty", partial(_removed, Path(directory)), 30)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # busy: its last process is on its way out
        return False
    return True


def processes_in(name: str) -> Iterator[int]:
    """Everybody in the control groups below that of a node, by this machine's numbers."""
    for root in hierarchies():
        for directory, _, files in os.walk(root / name.strip("/")):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    yield from map(int, Path(directory, "cgroup.procs").read_text().split())
