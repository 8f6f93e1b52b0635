"""New connections of w1 time out, and those that stand go on: the table that tracks connections is full."""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.network.conntrack_full import ConntrackFull
from problems.common import (
    ADDRESS,
    API,
    SERVED,
    WEB,
    decoy,
    drain,
    judged,
    permits,
    restart,
    restarted,
    told,
    until,
    wait,
)  # fmt: skip
from problems.probes import connects
from problems.words import WORDS, triple

CAUSE = triple("kernel of w1", "connection table full", "one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="new_connections_time_out",
    title="New connections time out, old ones are quick",
    statement=told(
        "w1: connections to and from the node time out; booking: 95th percentile of all requests above 3 s",
        'Users say: "Some clicks are quick, and some hang until they fail."',
        "Who was logged in to w1 before it began works on without trouble.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The connection tracking table of w1 has as many entries as it may have. The kernel drops each "
    "packet that would begin a connection, and says so in its log.",
    vocabulary=WORDS,
    faults=(Planted(fault=ConntrackFull(), node="w1", bites_within_s=120),),
    oracles=judged(PERMITTED, connects("w1", ADDRESS["w2"], 5432, label="connects_anew")),
    permitted=PERMITTED,
    challenge=(restarted("w1", WEB),),
    reference=Script(
        title="boot w1", steps=(("hardware", "power-cycle w1"), ("wait", "20"), ("w1", until(SERVED, 300)))
    ),
    decoys=(
        wait(),
        restart("w1", WEB, API),
        drain("w3"),
        decoy(
            "make the table larger",
            ("w1", "sudo sysctl -w net.netfilter.nf_conntrack_max=1000000; sleep 10"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="39: a table of the kernel that is full",
)  # fmt: skip
