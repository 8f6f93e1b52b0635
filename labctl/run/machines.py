"""The machines of a QEMU lab, in the hands of those who do hardware actions.

A reset is QEMU's: the guest loses its memory and boots, the process goes on, and so does what is broken in it. A
machine that is off has been reset and stands still.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from labctl.errors import LabError
from labctl.hardware.bench import CARD
from labctl.hardware.keeper import Keeper
from labctl.lab.machine import Places
from labctl.lab.model import Node, Ready
from labctl.lab.qmp import Qmp
from labctl.lab.tools import run
from labctl.power.model import Power
from labctl.progress import SilentProgress
from node_agent.injection import InjectionView

BLANK_S = 120.0
BOOT_S = 420.0
_POLL_S = 0.5


class Hypervisor(Protocol):
    """What is asked of :class:`labctl.lab.qemu.QemuLab`."""

    def qmp(self, name: str) -> Qmp: ...
    def power(self, name: str) -> Power: ...
    def power_off(self, name: str) -> None: ...
    def places(self, name: str) -> Places: ...
    def nodes(self) -> tuple[Node, ...]: ...
    def runs(self, name: str) -> bool: ...


class QemuMachines:
    """See :class:`labctl.run.hardware_actions.Machines`. `boot_id` reads a node's; "" where it cannot."""

    def __init__(
        self, lab: Hypervisor, keepers: Mapping[str, Keeper], ready: Ready, boot_id: Callable[[str], str]
    ) -> None:
        self._lab, self._keepers, self._ready, self._boot_id = lab, keepers, ready, boot_id
        self._off: set[str] = set()

    def state(self, node: str) -> str:
        """Whether it has power, which says nothing of whether it answers."""
        return "off" if node in self._off or not self._lab.runs(node) else "on"

    def reset(self, node: str) -> None:
        if not self._lab.runs(node):
            self.on(node)
            return
        before = self._boot_id(node)
        self._command(node, "system_reset")
        self._let_go(node)
        self._wait(node)
        self._wait_another(node, before)

    def off(self, node: str) -> None:
        if node in self._off or not self._lab.runs(node):
            return
        self._command(node, "stop")
        self._command(node, "system_reset")
        self._off.add(node)

    def on(self, node: str) -> None:
        if node in self._off:
            self._let_go(node)
        elif self._lab.runs(node):
            return
        else:
            with SilentProgress().task("") as task:
                self._lab.power(node).on(task)
        self._wait(node)

    def blank(self, node: str) -> None:
        """The disk's internal snapshot stays: it is what the lab goes back to."""
        self._lab.power_off(node)
        self._off.discard(node)
        disk = self._lab.places(node).data_disk
        size = _size(str(disk))
        run(
            ("qemu-io", "-f", "qcow2", "-c", f"write -z -u 0 {size}", str(disk)),
            "blanking a disk",
            timeout=BLANK_S,
        )
        self.on(node)

    def link(self, node: str, up: bool) -> None:
        with self._lab.qmp(node) as qmp:
            qmp.execute("set_link", name=CARD, up=up)

    def live(self, node: str) -> Sequence[InjectionView]:
        """What is planted there, of its hardware alone where its agent does not answer."""
        keeper = self._keepers[node]
        try:
            return keeper.list().injections
        except LabError:
            return keeper.below

    def recover(self, node: str, ids: Sequence[str]) -> None:
        ended = self._keepers[node].recover(ids=tuple(ids)).injections
        stuck = [f"{one.fault}: {'; '.join(one.residue)}" for one in ended if one.state != "recovered"]
        if stuck:
            raise LabError(f"{node}: it does not come off: {'; '.join(stuck)}")

    def _let_go(self, node: str) -> None:
        self._command(node, "cont")
        self._off.discard(node)

    def _wait_another(self, node: str, before: str) -> None:
        """Until it is another boot that answers: QEMU resets a little after it was asked to."""
        deadline = time.monotonic() + BOOT_S
        while self._boot_id(node) in ("", before):
            if time.monotonic() > deadline:
                raise LabError(f"{node} did not boot within {BOOT_S:g} s", "look at its console")
            time.sleep(_POLL_S)

    def _command(self, node: str, command: str) -> None:
        with self._lab.qmp(node) as qmp:
            qmp.execute(command)

    def _wait(self, node: str) -> None:
        self._ready(next(one for one in self._lab.nodes() if one.name == node))


def _size(disk: str) -> int:
    """Bytes of a disk as its machine sees it."""
    told = json.loads(run(("qemu-img", "info", "--output=json", disk), "looking at a disk", timeout=BLANK_S))
    return int(told["virtual-size"])
