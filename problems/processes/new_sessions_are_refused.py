"""New sessions of the database are refused while old ones work: its server cannot make processes.

The node has memory and process numbers to spare, and no limit of the unit is near. The kernel refuses it, for this
unit only, until the node boots. Restarting the server makes it worse: then there are no old sessions.
"""

from __future__ import annotations

from ebpf.fork_error import ForkError
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
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.probes import new_sessions
from problems.words import WORDS, triple

CAUSE = triple("PostgreSQL on w2", "new processes are refused", "one unit")
PERMITTED = permits()

PROBLEM = Problem(
    name="new_sessions_are_refused",
    title="The backup cannot connect to the database, clients can",
    statement=told(
        "backup of w2: could not connect to the server; booking: a few 503",
        'Users say nothing yet. The one before you wrote: "I cannot get a session to look at it."',
        "The API keeps its sessions open for up to an hour each.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The kernel of w2 answers EAGAIN to each fork of the database's server, which therefore refuses "
    "new sessions and cannot start its own helpers. Processes, memory and the unit's limits are far from their "
    "bounds. It ends with a boot of w2.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=ForkError(unit=POSTGRES, what="process"), node="w2", bites_within_s=60,
            shows="cd /; ! runuser -u postgres -- timeout 20 psql -XAtqc 'SELECT 1' >/dev/null 2>&1",
        ),
    ),
    oracles=judged(PERMITTED, new_sessions("w2")),
    permitted=PERMITTED,
    challenge=(restarted("w2", POSTGRES),),
    reference=Script(
        title="boot w2", steps=(("hardware", "power-cycle w2"), ("wait", "20"), ("w2", PRIMARY_ANSWERS))
    ),
    decoys=(
        wait(),
        restart("w2", POSTGRES),
        restart("w1", API),
        stop_monitor("w2"),
        decoy(
            "allow more processes",
            ("w2", "sudo sysctl -w kernel.pid_max=4194304; sudo sysctl -w kernel.threads-max=20000"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="21: fork refused on a machine with room",
)  # fmt: skip
