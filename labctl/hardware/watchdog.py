"""The watchdog of a lab's hardware faults: heals what is due, also when no `labctl` runs.

A process of the lab, started when a fault is planted. It ends when no hardware injection is live. A lock says
that it runs, so that a killed one is replaced by the next `labctl inject`; a lab has at most one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from labctl.errors import LabctlError
from labctl.hardware.journal import Journal

if TYPE_CHECKING:
    from labctl.hardware.injector import HardwareInjector

TICK_S = 1.0
READY_S = 600.0


def log_of(lab: Path) -> Path:
    """Where it says what went wrong."""
    return lab / "hardware" / "watchdog.log"


def _lock_of(lab: Path) -> Path:
    return lab / "hardware" / "watchdog.lock"


@contextlib.contextmanager
def _only_one(lab: Path) -> Iterator[IO[str] | None]:
    """Hold the lock; None where another one has it."""
    with _lock_of(lab).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield handle


def is_awake(lab: Path) -> bool:
    """Whether it runs. It gives the lock up before it looks a last time, so that no new record is overlooked."""
    _lock_of(lab).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock_of(lab).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def nodes_with_live(lab: Path) -> tuple[str, ...]:
    """The nodes of a lab that have live hardware injections."""
    base = lab / "hardware"
    names = sorted(path.name for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    return tuple(name for name in names if Journal(lab, name).live())


def watch(
    lab: Path, tend: Callable[[str], None], sleep: Callable[[float], None] = time.sleep, tick_s: float = TICK_S
) -> None:
    """Look after all nodes until nothing is live, or another watchdog does, or the lab is gone."""
    while lab.is_dir() and nodes_with_live(lab):
        with _only_one(lab) as mine:
            if mine is None:
                return
            while names := nodes_with_live(lab):
                for name in names:
                    tend(name)
                sleep(tick_s)


def _tend(lab: Path, name: str) -> None:
    """One look at one node, with connections of its own that end with it."""
    from labctl.hardware.wiring import injector_of
    from labctl.lab.qemu import QemuLab
    from labctl.pki import LabAuthority
    from labctl.progress import SilentProgress
    from labctl.transport.client import AgentClient
    from labctl.transport.connect import connect
    from labctl.transport.ready import make_ready

    qemu = QemuLab(lab)
    node = next(one for one in qemu.nodes() if one.name == name)
    authority = LabAuthority.load(lab / "pki")
    with ExitStack() as stack:

        def agent() -> AgentClient:
            return AgentClient(stack.enter_context(connect(node, authority, "grpc")))

        injector: HardwareInjector = injector_of(
            qemu, node, agent, make_ready(authority, READY_S), SilentProgress()
        )
        injector.tend()


def _tell(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def main(lab: Path) -> int:
    """Run until nothing is live. What goes wrong is told once, and tried again."""
    told: dict[str, str] = {}

    def tend(name: str) -> None:
        try:
            _tend(lab, name)
            told.pop(name, None)
        except (LabctlError, OSError) as error:
            if told.get(name) != str(error):
                told[name] = str(error)
                _tell(f"{name}: {error}")

    try:
        watch(lab, tend)
    except FileNotFoundError:  # the lab was destroyed meanwhile
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
