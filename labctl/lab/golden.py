"""The golden snapshot: memory and disks of a node, inside its own qcow2 files.

Interface: QEMU's jobs `snapshot-save` and `snapshot-load` (QAPI, since QEMU 6.0).
"""

from __future__ import annotations

from labctl.errors import LabError
from labctl.lab.qmp import Qmp

TAG = "golden"
_DISKS = ["root0", "data0"]
_JOB_S = 120.0


def save(qmp: Qmp) -> None:
    """Take the snapshot of a stopped machine."""
    qmp.job("snapshot-save", _JOB_S, tag=TAG, vmstate="root0", devices=_DISKS)


def load(qmp: Qmp) -> None:
    """Take a machine back to the snapshot. It is stopped afterwards."""
    qmp.execute("stop")
    qmp.job("snapshot-load", _JOB_S, tag=TAG, vmstate="root0", devices=_DISKS)


def loadable(qmp: Qmp) -> bool:
    """Whether the running machine still has the devices that the snapshot was taken with.

    A filter node above a disk ends QEMU 7.2 when a snapshot is loaded, and a machine without a card or a disk that
    the snapshot has cannot load it. Such a machine has to be started anew.
    """
    above = {name: qmp.execute("qom-get", path=f"/machine/peripheral/{device}", property="drive")
             for device, name in (("rootdev", "root0"), ("datadev", "data0"))
             if device in _devices(qmp)}  # fmt: skip
    if above != {"root0": "root0", "data0": "data0"} or not {"mgmt", "lan", "scsi0"} <= _devices(qmp):
        return False
    return not any(
        node["drv"] in ("blkdebug", "throttle") for node in qmp.execute("query-named-block-nodes", flat=True)
    )


def _devices(qmp: Qmp) -> set[str]:
    listed = qmp.execute("qom-list", path="/machine/peripheral")
    if not isinstance(listed, list):
        raise LabError("QEMU does not list its devices")
    return {entry["name"] for entry in listed}
