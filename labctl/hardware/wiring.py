"""The real hardware of a QEMU lab's nodes: what joins journal, QEMU, agents and power."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil

from labctl.hardware import watchdog
from labctl.hardware.bench import Bench, Files, Memory, tag_of
from labctl.hardware.injector import HardwareInjector
from labctl.hardware.journal import Journal
from labctl.lab import processes
from labctl.lab.model import Node, Ready
from labctl.lab.remote import connected
from labctl.progress import Progress

if TYPE_CHECKING:
    from labctl.lab.qemu import QemuLab
    from labctl.transport.client import AgentClient


class NodePower:
    """See :class:`labctl.hardware.bench.Power`."""

    def __init__(self, lab: QemuLab, node: Node, injection: str, ready: Ready, progress: Progress) -> None:
        self._lab, self._node, self._injection = lab, node, injection
        self._ready, self._progress = ready, progress

    def process(self) -> str:
        pid = self._lab.process(self._node.name)
        if pid is None:
            return ""
        try:
            return f"{pid}:{psutil.Process(pid).create_time():.2f}"
        except psutil.NoSuchProcess:
            return ""

    def off(self) -> None:
        self._lab.power_off(self._node.name)

    def on(self) -> None:
        self._lab.boot_node(self._node.name, self._progress, healer=self._injection)
        self._ready(next(node for node in self._lab.nodes() if node.name == self._node.name))


def injector_of(
    lab: QemuLab, node: Node, agent: Callable[[], AgentClient], ready: Ready, progress: Progress
) -> HardwareInjector:
    """The hardware of one node of a lab. `ready` waits for a node's agent and sets its clock."""

    def bench(injection_id: str, memory: Memory) -> Bench:
        power = NodePower(lab, node, injection_id, ready, progress)
        files = Files(lab.places(node.name), tag_of(injection_id))
        return Bench(
            node, files, memory, power, agent, lambda: lab.qmp(node.name), run=run, ready=lambda: ready(node)
        )

    def run(argv: tuple[str, ...]) -> int:
        with connected(node) as remote:
            return remote.run(argv).status

    @contextlib.contextmanager
    def lab_lock() -> Iterator[None]:
        with lab.locked(progress):
            yield

    journal = Journal(lab.directory, node.name)
    return HardwareInjector(node.name, journal, bench, lab_lock=lab_lock, wake_watchdog=lambda: wake(lab))


def wake(lab: QemuLab) -> None:
    """See to it that the lab's watchdog runs. Does nothing where it does."""
    directory = lab.directory
    if not watchdog.is_awake(directory):
        argv = (sys.executable, "-m", "labctl.hardware.watchdog", str(directory))
        processes.spawn(argv, watchdog.log_of(directory))
