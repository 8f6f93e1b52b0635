"""No booking can be written: somebody's log has taken all space of the disk that the WAL is on.

The server panics at the next segment of its WAL and does not come up. What takes the space is not the database's,
and what the database has in pg_wal is not to be touched.
"""

from __future__ import annotations

from disk_faults.disk_full import DiskFull
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
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.probes import room
from problems.words import WORDS, triple

CAUSE = triple("file system /srv/data of w2", "has no space left", "the whole database")
PERMITTED = permits()
ANSWERS = "cd /; runuser -u postgres -- psql -XAtqc 'SELECT 1' >/dev/null 2>&1"
NIGHT = (
    "cd /; i=0; while [ $i -lt 40 ]; do i=$((i+1)); runuser -u postgres -- timeout 60 psql -XAtqc "
    "\"SELECT pg_logical_emit_message(true, 'night', repeat('x', 6000000)), pg_switch_wal()\" >/dev/null 2>&1 || "
    "break; done"
)
"""What the night's jobs write: the server stops where it finds no room for it."""

LOG = "/srv/data/$(ls /srv/data | grep '^app-debug')"
IN_WAL = f"cd {DATA}/pg_wal && ls | grep -E '^[0-9A-F]+$' | sort | head -n 2 | xargs rm -f"

PROBLEM = Problem(
    name="writes_fail_since_midnight",
    title="No bookings since midnight",
    statement=told(
        "booking: PUT /bookings fails; postgresql@17-main on w2 restarts again and again",
        'Users say: "Nothing works."',
        "The night's jobs began at midnight, as always.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="A log file of another user has grown until /srv/data on w2 has no space left. PostgreSQL cannot "
    "write its WAL (53100), panics and does not start. The kernel logs nothing; root could still write.",
    vocabulary=WORDS,
    faults=(Planted(fault=DiskFull(), node="w2", then=NIGHT, shows=f"! {{ {ANSWERS}; }}", bites_within_s=120),),
    oracles=judged(PERMITTED, room("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="remove the log that takes the space, and start the database",
        steps=(("w2", f"sudo ls -l /srv/data; sudo rm -f {LOG}; {START_PRIMARY}"),),
    ),
    alternative=Script(
        title="cut the log to nothing, and start the database",
        steps=(("w2", f"sudo truncate --size=0 {LOG}; {START_PRIMARY}"),),
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        stop_monitor("w2"),
        decoy("make room in pg_wal", ("w2", f'sudo -u postgres sh -c "{IN_WAL}"; {START_PRIMARY}'),
              fails_as="cause_left"),
        decoy(
            "keep less for root in the file system, so that there is room",
            ("w2", f"sudo tune2fs -m 0 /dev/mapper/data; {START_PRIMARY}"),
            fails_as="cause_left",
        ),
    ),
    case="17: a disk of WAL that fills; PANIC 53100",
)  # fmt: skip
