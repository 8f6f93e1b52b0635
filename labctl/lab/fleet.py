"""Doing things to all machines of a lab at once: starting, taking snapshots, going back, ending."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from labctl.errors import LabError
from labctl.lab import golden, ports, processes
from labctl.lab.files import tail
from labctl.lab.machine import Machine, pid, start
from labctl.lab.qmp import Qmp, QmpError

T = TypeVar("T")
_QUIET_S = 20.0
_SWITCH_S = 15.0
_QUIT_S = 5.0


def each(things: Sequence[T], act: Callable[[T], None]) -> None:
    """Do `act` to all at once, wait for all, then raise what went wrong first (in order), if anything did."""
    if not things:
        return
    with ThreadPoolExecutor(max_workers=len(things)) as pool:
        futures = [pool.submit(act, thing) for thing in things]
    for future in futures:
        future.result()


def start_switch(run_dir: Path, log: Path) -> None:
    """The lab network between the nodes: a user-space switch that needs no root. Does nothing where it runs."""
    pidfile, directory = run_dir / "switch.pid", run_dir / "switch"
    if processes.recorded(pidfile, str(run_dir)) is not None:
        return
    # A switch that was killed leaves its sockets, and the next one does not start beside them.
    pidfile.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    (run_dir / "switch.mgmt").unlink(missing_ok=True)
    argv = ("vde_switch", "--numports", "64", "--sock", str(directory), "--pidfile", str(pidfile))
    processes.spawn((*argv, "--mode", "0600", "--mgmt", str(run_dir / "switch.mgmt"), "--daemon"), log)
    deadline = time.monotonic() + _SWITCH_S
    while processes.recorded(pidfile, str(run_dir)) is None or not (directory / "ctl").exists():
        if time.monotonic() > deadline:
            raise LabError("the lab network's switch did not start", tail(log) or f"see {log}")
        time.sleep(0.02)


def wait_quiet(forwarded: Sequence[int]) -> None:
    """Wait until no control connection is open: one that is in a snapshot would hang after each restore."""
    deadline = time.monotonic() + _QUIET_S
    while count := ports.open_connections(forwarded):
        if time.monotonic() > deadline:
            raise LabError(
                f"{count} connections to the nodes stay open, so that no snapshot can be taken",
                "end SSH sessions to the lab's nodes, then: labctl up",
            )
        time.sleep(0.05)


def take_golden(machines: Sequence[Machine]) -> None:
    """Snapshot all nodes at one moment: all stand still before the first is saved, until the last one is."""
    each(machines, lambda machine: _command(machine, "stop"))
    each(machines, _save)
    each(machines, lambda machine: _command(machine, "cont"))


def restore(machines: Sequence[Machine]) -> None:
    """Take all nodes back to the golden snapshot, and let them go on at one moment.

    Each is started anew, whatever it was doing.
    """
    each(machines, _restore_one)
    each(machines, lambda machine: _command(machine, "cont"))


def end_all(machines: Iterable[Machine], run_dir: Path) -> None:
    """End everything of a lab: QEMU is asked, what stays is killed, then the switch."""
    asked = [found for machine in machines if (found := pid(machine)) is not None and _quit(machine)]
    processes.end(asked, str(run_dir), patience=_QUIT_S)
    processes.end(processes.sweep(str(run_dir)), str(run_dir))


def end_one(machine: Machine) -> None:
    """Pull the plug of one machine."""
    processes.end(processes.sweep(str(machine.places.qmp)), str(machine.places.qmp))


def _restore_one(machine: Machine) -> None:
    """Load the snapshot in a process that has not run yet.

    In one that has, QEMU's emulated time stamp counter never goes back (cpu_get_ticks), so the restored guest
    finds its clocks far ahead of the snapshot, and its watchdogs bark. A new process has no past, no filter nodes
    above its disks, and all devices.
    """
    running = pid(machine)
    if running is not None and _quit(machine):
        processes.end([running], str(machine.places.qmp), patience=_QUIT_S)
    end_one(machine)
    start(machine, paused=True)
    with Qmp(machine.places.qmp) as qmp:
        golden.load(qmp)


def _save(machine: Machine) -> None:
    with Qmp(machine.places.qmp) as qmp:
        golden.save(qmp)


def _command(machine: Machine, command: str) -> None:
    with Qmp(machine.places.qmp) as qmp:
        qmp.execute(command)


def _quit(machine: Machine) -> bool:
    try:
        with Qmp(machine.places.qmp, timeout=5.0) as qmp:
            qmp.quit()
    except QmpError:
        return False
    return True
