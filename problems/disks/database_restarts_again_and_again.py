"""The database restarts again and again: its disk takes writes and reports that flushing them failed.

The server is right to panic: what it asked to be on the disk may not be. Switching fsync off ends the panics and
the promise.
"""

from __future__ import annotations

from disk_faults.flush_error import FlushError
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    POSTGRES,
    START_PRIMARY,
    decoy,
    judged,
    permits,
    restart,
    restarted,
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.probes import writable
from problems.words import WORDS, triple

CAUSE = triple("data disk of w2", "flushes fail", "the whole database")
PERMITTED = permits()
FILE = "/etc/postgresql/17/main/conf.d/booking.conf"
ADDED, ALSO = "fsync = off", "data_sync_retry = on"

PROBLEM = Problem(
    name="database_restarts_again_and_again",
    title="The database restarts again and again",
    statement=told(
        "postgresql@17-main on w2: ended by signal 6, several times in the last minutes; booking: 5xx above 50 %",
        'Users say: "Now and then it works for a moment."',
    ),
    cause=frozenset({CAUSE}),
    root_cause="The data disk of w2 answers EIO to each flush of its cache, as behind a cable or controller that "
    "fails; reads and writes go well. PostgreSQL panics at each fsync and recovers from its WAL, until the next.",
    vocabulary=WORDS,
    faults=(Planted(fault=FlushError(), node="w2", bites_within_s=60),),
    oracles=judged(PERMITTED, writable("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="reseat the disk, and start the database",
        steps=(("hardware", "reseat-disk w2"), ("w2", f"sudo systemctl restart {POSTGRES}; {START_PRIMARY}")),
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        stop_monitor("w2"),
        decoy(
            "have the server not flush",
            ("w2", f"echo '{ADDED}' | sudo tee -a {FILE}; sudo systemctl restart {POSTGRES}; sleep 20"),
            fails_as="off_the_permitted_list",
        ),
        decoy(
            "have the server go on after a failed flush",
            ("w2", f"echo '{ALSO}' | sudo tee -a {FILE}; sudo systemctl restart {POSTGRES}; sleep 20"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="5: fsync fails once, and the second one lies",
)  # fmt: skip
