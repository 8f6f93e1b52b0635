"""Writes to the database are refused as for lack of rights: its file system is read-only after an error.

The mount table says `rw`, and a remount that seems to work heals nothing. The journal has to be put right with the
file system unmounted. SQLSTATE 42501 leads those astray who filter by it.
"""

from __future__ import annotations

from disk_faults.readonly_remount import ReadonlyRemount
from labctl.oracles.disks import Disks
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    DATA,
    POSTGRES,
    START_PRIMARY,
    decoy,
    judged,
    permits,
    restart,
    restarted,
    stop_traffic,
    told,
    wait,
)  # fmt: skip
from problems.probes import writable
from problems.words import WORDS, triple

CAUSE = triple("file system /srv/data of w2", "read-only after an error", "the whole database")
PERMITTED = permits("w2:mount /srv/data")
DISK = "/dev/mapper/data"
FSCK = f"sudo umount /srv/data; sudo e2fsck -f -y {DISK}; sudo mount -o noatime {DISK} /srv/data"

PROBLEM = Problem(
    name="database_refuses_writes",
    title="The database says that it may not open its files",
    statement=told(
        "booking: PUT /bookings fails; the log of w2 has 42501, insufficient privilege",
        'Users say: "I cannot book anything, it says to try again."',
        "Somebody looked at the rights of the files: they are as always. The mount table says rw.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The ext4 of /srv/data on w2 met an error, aborted its journal and takes no writes any more, "
    "whatever /proc/mounts says. The disk is well. Only fsck of the unmounted file system puts it right.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=ReadonlyRemount(mode="error"), node="w2", bites_within_s=90,
            shows="! touch /srv/data/.felt 2>/dev/null || { rm -f /srv/data/.felt; false; }",
        ),
    ),
    oracles=judged(PERMITTED, Disks(node="w2", as_aspect="cause"), writable("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="stop the database, check the file system, mount it, start the database",
        steps=(("w2", f"sudo systemctl stop {POSTGRES}; {FSCK}; {START_PRIMARY}"),),
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        stop_traffic(),
        decoy(
            "mount it for writing again, as it is",
            ("w2", f"sudo mount -o remount,rw /srv/data; timeout 100 sudo systemctl restart {POSTGRES}; sleep 15"),
            fails_as="cause_left",
        ),
        decoy("give the group all rights to the files", ("w2", f"sudo chmod 750 {DATA}"), fails_as="cause_left"),
    ),
    case="13: a file system that is read-only while the mount table says rw",
)  # fmt: skip
