"""Nothing works: w2, with the database on it, stands still and answers nothing.

It has power, and does nothing with it. Whoever waits waits for ever; whoever fails over while the old primary may
wake up at any moment has two of them.
"""

from __future__ import annotations

from labctl.hardware.faults.node_frozen import NodeFrozen
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    API,
    POSTGRES,
    PRIMARY_ANSWERS,
    decoy,
    judged,
    permits,
    restart,
    restarted,
    stop_traffic,
    told,
    wait,
)  # fmt: skip
from problems.words import WORDS, triple

CAUSE = triple("w2 itself", "stands still", "one node")
PERMITTED = permits()
PROMOTE = "sudo -u postgres psql -XAtqc 'SELECT pg_promote()'"

PROBLEM = Problem(
    name="database_machine_is_silent",
    title="Nothing works",
    statement=told(
        "booking: 100 % of bookings fail; w2: no answer to anything",
        'Users say: "Nothing works."',
        "w2 was well until a minute ago; no maintenance was announced.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="w2 has stopped in the middle of everything: it has power, its link is up, and it runs nothing. "
    "Its disk is well; the database recovers from its WAL once the machine has been reset.",
    vocabulary=WORDS,
    faults=(Planted(fault=NodeFrozen(), node="w2", bites_within_s=60),),
    oracles=judged(PERMITTED),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="power-cycle it", steps=(("hardware", "power-cycle w2"), ("wait", "20"), ("w2", PRIMARY_ANSWERS))
    ),
    decoys=(
        wait("out_of_bounds"),
        restart("w1", API, fails_as="out_of_bounds"),
        stop_traffic(),
        decoy(
            "make the standby the primary, and leave clients without its name",
            ("w3", PROMOTE),
            fails_as="out_of_bounds",
        ),
    ),
    case="1: a member that stands still and wakes up later",
)
