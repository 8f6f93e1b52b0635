"""An overlay above a disk that takes all writes while a fault stands, and its way back into the disk.

The overlay has subclusters of one sector (qcow2, `extended_l2`), so a write never needs to read what is beside
it, and a rewrite of one bad sector reads well afterwards. While it stands, the newest data are in it: it is
committed into the disk before anything else may use that, running (a commit job of QEMU) or not (qemu-img).

The switch back is safe at every moment. Until the machine is stopped, the overlay has all data. While it is
stopped, overlay and disk have the same content. It goes on only when the overlay's file is gone.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from labctl.errors import LabError
from labctl.hardware.bench import DISK_NODE, Bench, Files, block_nodes, drive_of
from labctl.lab.qmp import Qmp, QmpError
from labctl.lab.tools import run

COMMIT_S = 600.0
_COMPLETE_S = 30.0
_POLL_S = 0.01
_CLUSTER = 16384
"""The smallest cluster that has 32 subclusters: of 512 bytes."""

_STOPPED = "stopped"


def node_of(bench: Bench) -> str:
    """The overlay's block node."""
    return f"{bench.tag}-over"


def size_of(qmp: Qmp, node: str) -> int:
    """Bytes of a block node as the guest sees it."""
    return int(block_nodes(qmp)[node]["image"]["virtual-size"])


def add(qmp: Qmp, bench: Bench, below: str) -> None:
    """Make an empty overlay above the node `below`. No device uses it yet."""
    path = bench.files.overlay
    # Its header names the disk itself: committed offline, the data go there, past any filter. -u: the running QEMU
    # holds the disk's lock, and nothing has to be read of it.
    run(
        ("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", str(bench.files.places.data_disk),
         "-o", f"cluster_size={_CLUSTER},extended_l2=on", str(path), str(size_of(qmp, DISK_NODE))),
        "making an overlay", timeout=60,
    )  # fmt: skip
    qmp.execute(
        "blockdev-add", driver="qcow2", node_name=node_of(bench), discard="unmap", cache={"no-flush": True},
        backing=below, file={"driver": "file", "filename": str(path), "discard": "unmap"},
    )  # fmt: skip


def take_away(qmp: Qmp, bench: Bench, device: str) -> None:
    """Bring its data into the disk, have the device use the disk, and delete it: node, file and all."""
    _end_job(qmp, bench)
    if drive_of(qmp, device).get("node-name") == node_of(bench):
        _commit(qmp, bench)
        if qmp.execute("query-status")["running"]:
            bench.memory.put(_STOPPED, "yes")  # whoever finishes this has to let it go on
            qmp.execute("stop")
        qmp.execute("block-job-complete", device=_job(bench))
        _wait(qmp, bench, ("concluded",), _COMPLETE_S)
        _end_job(qmp, bench)
    if drive_of(qmp, device).get("node-name") == node_of(bench):
        raise LabError("the disk still uses the overlay after its commit")
    if node_of(bench) in block_nodes(qmp):
        qmp.execute("blockdev-del", node_name=node_of(bench))
    bench.files.overlay.unlink(missing_ok=True)
    if bench.memory.get(_STOPPED):
        qmp.execute("cont")
        bench.memory.put(_STOPPED, "")


def settle(files: Files, keep: bool) -> None:
    """The same for a machine that does not run. Raises LabError where the data cannot be brought into the disk."""
    if not files.overlay.exists():
        return
    if keep:
        run(
            ("qemu-img", "commit", "-q", "-f", "qcow2", str(files.overlay)),
            f"bringing what was written while {files.tag} stood into the disk",
            timeout=COMMIT_S,
            hint=f"the newest data of {files.places.name} are in {files.overlay}: do not delete it",
        )
    files.overlay.unlink()


def _commit(qmp: Qmp, bench: Bench) -> None:
    """Copy into the disk until both are the same; from then on QEMU keeps them so.

    QEMU copies pieces of 64 KiB, also what of them the guest has not written: that is read from the disk itself,
    or a filter with errors between them would end the copy.
    """
    _reopen_on_the_disk(qmp, bench)
    qmp.execute("block-commit", job_id=_job(bench), device=node_of(bench), base_node=DISK_NODE, auto_dismiss=False)
    _wait(qmp, bench, ("ready",), COMMIT_S)


def _reopen_on_the_disk(qmp: Qmp, bench: Bench) -> None:
    """Nothing is between the overlay and the disk any more (QAPI `blockdev-reopen`, since QEMU 6.1)."""
    overlay = str(bench.files.overlay)
    nodes = block_nodes(qmp).items()
    file = next((name for name, node in nodes if node.get("drv") == "file" and node.get("file") == overlay), "")
    if not file:
        raise LabError("QEMU does not show the overlay's file")
    changed = {"driver": "qcow2", "node-name": node_of(bench), "discard": "unmap", "cache": {"no-flush": True},
               "backing": DISK_NODE, "file": file}  # fmt: skip
    qmp.send("blockdev-reopen", {"options": [changed]})


def _job(bench: Bench) -> str:
    return f"{bench.tag}-back"


def _jobs(qmp: Qmp, bench: Bench) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = qmp.execute("query-jobs")
    return next((one for one in found if one["id"] == _job(bench)), None)


def _wait(qmp: Qmp, bench: Bench, states: tuple[str, ...], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        job = _jobs(qmp, bench)
        if job is None or job.get("error"):
            raise LabError(f"the commit failed: {job['error'] if job else 'QEMU lost the job'}")
        if job["status"] in states:
            return
        if job["status"] in ("concluded", "null"):
            raise LabError("the commit ended before it was asked to")
        if time.monotonic() > deadline:
            raise LabError(f"the commit is not {states[0]} after {timeout:.0f} s")
        time.sleep(_POLL_S)


def _end_job(qmp: Qmp, bench: Bench) -> None:
    """Take away a commit that is over, or that a killed labctl left half way."""
    deadline = time.monotonic() + _COMPLETE_S
    while (job := _jobs(qmp, bench)) is not None:
        if job["status"] == "concluded":
            qmp.execute("job-dismiss", id=_job(bench))
            continue
        with contextlib.suppress(QmpError):  # it may end by itself just now
            qmp.execute("block-job-cancel", device=_job(bench), force=True)
        if time.monotonic() > deadline:
            raise LabError("an earlier commit does not end")
        time.sleep(_POLL_S)
