"""Bookings take seconds: the drive of w2 serves few requests a second, and says nothing of it.

Writes wait for the disk at each commit; searches that are in memory are as fast as ever. Whoever turns the waiting
off (synchronous_commit, fsync) buys speed with bookings that a power cut will take.
"""

from __future__ import annotations

from labctl.hardware.faults.disk_degraded import DiskDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import POSTGRES, decoy, judged, permits, reboot, restart, restarted, told, wait
from problems.probes import disk_is_fast
from problems.words import WORDS, triple

CAUSE = triple("data disk of w2", "answers late", "the whole database")
PERMITTED = permits()

PROBLEM = Problem(
    name="bookings_take_seconds",
    title="Bookings take seconds",
    statement=told(
        "booking: 95th percentile of PUT /bookings above 2.5 s for 5 minutes",
        'Users say: "Searching is quick, but when I book it spins, and sometimes gives up."',
        "CPUs are idle. No release in the last two weeks.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The data disk of w2 serves three requests a second and no more, as behind a bad cable or a "
    "controller that has turned its cache off. Each commit waits for its flush. No error is logged anywhere.",
    vocabulary=WORDS,
    faults=(Planted(fault=DiskDegraded(iops=3), node="w2", bites_within_s=60),),
    oracles=judged(PERMITTED, disk_is_fast("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(title="reseat the disk", steps=(("hardware", "reseat-disk w2"), ("wait", "10"))),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        reboot("w2"),
        decoy(
            "have commits not wait for the disk",
            ("w2", 'sudo -u postgres psql -Xqc "ALTER SYSTEM SET synchronous_commit = off"'),
            ("w2", 'sudo -u postgres psql -Xqc "SELECT pg_reload_conf()"'),
            fails_as="off_the_permitted_list",
        ),
        decoy(
            "restart the API, whose threads all wait",
            ("w1", "sudo systemctl restart booking-api.service; sleep 15"),
            ("w3", "sudo systemctl restart booking-api.service; sleep 15"),
            fails_as="cause_left",
        ),
    ),
    case="15: sync writes suddenly 10-50 times slower on some hosts; 31: the read path under a cap",
)
