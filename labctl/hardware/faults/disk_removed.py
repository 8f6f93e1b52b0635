"""disk_removed: the data disk is pulled out while it is in use, and put back later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from labctl.errors import LabError, UsageError
from labctl.hardware.bench import DISK, DISK_NODE, LOST, Bench, devices
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log

GONE_S = 30.0
BACK_S = 60.0
_POLL_S = 0.3
_KEPT = ("serial", "channel", "scsi-id", "lun")


class Slot(Place):
    """Where the disk was plugged in, so that the same one comes back."""

    properties: Mapping[str, Any]

    def describe(self) -> str:
        return f"the data disk, serial {self.properties['serial']}"


class DiskRemoved(HardwareFault):
    """Surprise removal: the disk is gone without a word, with whatever was on its way to it.

    Recovery puts the same disk back. The guest gives it another name, because the old one is still held; then the
    node's agent leads the device-mapper table to it and brings the file system back, and says what was lost.
    """

    name: ClassVar[str] = "disk_removed"
    summary: ClassVar[str] = "the data disk is pulled out while in use"
    operator_sees: ClassVar[str] = (
        "the disk disappears from /sys/block; 'Synchronize Cache(10) failed' and 'access beyond end of device' in "
        "the kernel log; EIO; the file system aborts its journal or shuts down; later the disk is back as another "
        "device"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = Slot
    holds: ClassVar[tuple[str, ...]] = ("data disk's medium", "data disk's speed")

    def locate(self, bench: Bench) -> Slot:
        with bench.qmp() as qmp:
            if DISK not in devices(qmp):
                raise LabError(f"{bench.node.name} has no data disk")
            path = f"/machine/peripheral/{DISK}"
            return Slot(properties={name: qmp.execute("qom-get", path=path, property=name) for name in _KEPT})

    def actions(self, place: Place) -> tuple[str, ...]:
        return (
            "unplug the disk without asking the guest; recovery plugs it in again where it was",
            "at recovery: have the agent lead the device-mapper table to it and look after the file system",
        )

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's device_del",
            covers=("everything that uses the disk",),
            warnings=("what was on its way to the disk is lost; recovery says what the file system knows of it",),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        used = "once the disk is used"
        let_go = r"\[sd[a-z]+\] Synchroniz(?:e Cache\(\d+\) failed|ing SCSI cache)"
        return (
            in_log("the driver lets the disk go", let_go),
            in_log("the block layer finds no disk", r"access beyond end of device|rejecting I/O to", used),
            in_log("the file system stops", r"Aborting journal|EXT4-fs error|XFS .*[Ss]hut(?:ting)? ?down", used),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            qmp.execute("device_del", id=DISK)
            if not qmp.wait_event("DEVICE_DELETED", GONE_S, device=DISK):
                raise LabError(f"the disk was not let go within {GONE_S:.0f} s")

    def heal(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            if DISK not in devices(qmp):
                qmp.execute("device_add", driver="scsi-hd", id=DISK, drive=DISK_NODE, bus="scsi0.0",
                            **_ours(place).properties)  # fmt: skip
        self._repair(bench)

    def _repair(self, bench: Bench) -> None:
        """The agent can tell which disk it is only when the guest's drivers have found it."""
        deadline = time.monotonic() + BACK_S
        while True:
            try:
                repair = bench.agent().repair_disk(bench.tag)
                break
            except UsageError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        bench.memory.put(LOST, "\n".join(repair.lost))

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        with bench.qmp() as qmp:
            return () if DISK in devices(qmp) else ("the data disk is not plugged in",)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        with bench.qmp() as qmp:
            return Evidence(armed=DISK not in devices(qmp), hits=1)


def _ours(place: Place) -> Slot:
    if not isinstance(place, Slot):
        raise TypeError(f"{type(place).__name__} is no place of this fault")
    return place
