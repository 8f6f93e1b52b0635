"""Half of all requests hang: w1 hears nothing from w2, while w2 hears w1, and everybody else hears both.

The API on w1 waits for a database that answers, and answers to nobody. Pings from either side fail, so it looks
like both are dead; seen from w3 both are well.
"""

from __future__ import annotations

from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import API, POSTGRES, decoy, drain, judged, permits, restart, restarted, told, wait
from problems.probes import network_heals
from problems.words import WORDS, triple

CAUSE = triple("network between w1 and w2", "hears nothing from one peer", "one direction of one link")
PERMITTED = permits()

PROBLEM = Problem(
    name="half_of_all_requests_hang",
    title="Half of all requests hang, then fail",
    statement=told(
        "booking: 503 of 45 % of all requests",
        'Users say: "Every other click hangs for seconds and fails. Reloading helps, sometimes."',
        "The database is up; a colleague is logged in to it from w3 and works as always.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The switch drops packets from w2 to w1; those from w1 get to w2. The API on w1 cannot use the "
    "database, and etcd of w1 does not hear w2. w3 reaches both.",
    vocabulary=WORDS,
    faults=(Planted(fault=LinkDegraded(loss_percent=100, direction="in", peers=("w2",)), node="w1"),),
    oracles=judged(PERMITTED, network_heals()),
    permitted=PERMITTED,
    challenge=(restarted("w1", API),),
    reference=Script(
        title="have the switch forget what it has about w1",
        steps=(("hardware", "reset-switch-port w1"), ("wait", "15")),
    ),
    alternative=Script(
        title="another cable and port for w1", steps=(("hardware", "replace-cable w1"), ("wait", "15"))
    ),
    decoys=(
        wait(),
        restart("w1", API),
        restart("w2", POSTGRES),
        drain("w1"),
        decoy(
            "another cable for the wrong node",
            ("hardware", "replace-cable w2"),
            ("wait", "15"),
            fails_as="cause_left",
        ),
    ),
    case="19: a standby and an API behind a partition; 35: reachable from some peers only",
)
