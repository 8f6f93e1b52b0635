"""Alarms from everywhere: an API that is slow, a standby that is behind, an etcd that changes leaders. One link.

All that the three have in common is the cable of w3, which carries a hundredth of what it should. Treating each
alarm by itself, three repairs make three new troubles.
"""

from __future__ import annotations

from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    API,
    POSTGRES,
    decoy,
    drain,
    judged,
    permits,
    restart,
    restarted,
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.probes import network_heals
from problems.words import WORDS, triple

CAUSE = triple("network interface of w3", "carries too little", "all links of one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="alarms_from_everywhere",
    title="Three alarms within a minute",
    statement=told(
        "booking: 95th percentile above 2 s; w3: replay is behind at times; etcd: member w3 is slow",
        'Users say: "It hangs, then it goes on."',
        "Three teams were called: for the API, for the database, and for etcd. Each says that its part is well.",
    ),
    mode="correlated",
    cause=frozenset({CAUSE}),
    root_cause="The cable of w3 carries 12 KiB a second and no more. All that talks to w3 waits in its queue: "
    "requests of the API there, replication, and the heartbeats of etcd. Nothing else is wrong.",
    vocabulary=WORDS,
    faults=(Planted(fault=LinkDegraded(loss_percent=0, kib_per_s=12), node="w3"),),
    oracles=judged(PERMITTED, network_heals()),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(title="another cable for w3", steps=(("hardware", "replace-cable w3"), ("wait", "15"))),
    alternative=Script(title="reseat the card of w3", steps=(("hardware", "reseat-nic w3"), ("wait", "15"))),
    decoys=(
        wait(),
        restart("w3", API, POSTGRES, "etcd.service"),
        drain("w3"),
        stop_monitor("w3"),
        decoy(
            "take etcd of w3 out of service",
            ("w3", "sudo systemctl disable --now etcd.service"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="31: several symptoms of one path; 37",
)  # fmt: skip
