"""The golden snapshot: memory and disks of a node, inside its own qcow2 files.

Interface: QEMU's jobs `snapshot-save` and `snapshot-load` (QAPI, since QEMU 6.0).
"""

from __future__ import annotations

from labctl.lab.qmp import Qmp

TAG = "golden"
_DISKS = ["root0", "data0"]
_JOB_S = 120.0


def save(qmp: Qmp) -> None:
    """Take the snapshot of a stopped machine."""
    qmp.job("snapshot-save", _JOB_S, tag=TAG, vmstate="root0", devices=_DISKS)


def load(qmp: Qmp) -> None:
    """Take a machine that was started stopped to the snapshot. It stays stopped."""
    qmp.job("snapshot-load", _JOB_S, tag=TAG, vmstate="root0", devices=_DISKS)
