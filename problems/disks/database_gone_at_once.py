"""The database is gone from one moment to the next: its disk was pulled out of w2."""

from __future__ import annotations

from labctl.hardware.faults.disk_removed import DiskRemoved
from labctl.oracles.disks import Disks
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    POSTGRES,
    START_PRIMARY,
    judged,
    permits,
    reboot,
    restart,
    restarted,
    stop_traffic,
    told,
    wait,
)  # fmt: skip
from problems.disks.database_refuses_writes import FSCK
from problems.probes import writable
from problems.words import WORDS, triple

CAUSE = triple("data disk of w2", "was taken out", "the whole database")
PERMITTED = permits("w2:mount /srv/data")
MOUNTED = "findmnt /srv/data >/dev/null || sudo mount -o noatime /dev/mapper/data /srv/data"

PROBLEM = Problem(
    name="database_gone_at_once",
    title="The database is gone",
    statement=told(
        "booking: 5xx above 90 %; the database on w2 cannot be reached, or answers with errors",
        'Users say: "Nothing works, from one minute to the next."',
        "A technician has been working at the rack since this morning.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The data disk of w2 was pulled out while in use. Everything on /srv/data answers with I/O errors, "
    "and its file system has stopped.",
    vocabulary=WORDS,
    faults=(Planted(fault=DiskRemoved(), node="w2", bites_within_s=90),),
    oracles=judged(PERMITTED, Disks(node="w2", as_aspect="cause"), writable("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="put the disk in again, check its file system, start the database",
        steps=(
            ("w2", f"sudo systemctl stop {POSTGRES}; sudo umount /srv/data"),
            ("hardware", "reseat-disk w2"),
            ("w2", f"{FSCK}; {MOUNTED}; {START_PRIMARY}"),
        ),
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        reboot("w2"),
        stop_traffic(),
    ),
    case="51: a disk that is unplugged under load",
)
