"""Everything fails although all is well: the network to the database was away for some minutes, and the pools of
both instances of the API do not come back with it.

Each pool tries to connect again after pauses that double. Now that the database can be reached, by everybody else
in milliseconds, the pools wait for a pause of minutes to end. The trigger is over, and the state feeds on itself:
what fails takes a thread for as long as it waits, and the next one waits behind it.
"""

from __future__ import annotations

from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    API,
    POSTGRES,
    api_is_back,
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

CAUSES = tuple(
    triple(f"booking-api on {node}", "kept dead connections of a trigger that is over", "one unit")
    for node in ("w1", "w3")
)
PERMITTED = permits()
AWAY_S = 160.0
"""The pools' tries come 1, 2, 4 … 64 and 128 seconds apart: the last before its end is a minute or more old."""

PROBLEM = Problem(
    name="everything_fails_though_all_is_well",
    title="Everything fails, and every part says that it is well",
    statement=told(
        "booking: 503 of 95 % of all requests",
        'Users say: "Nothing works."',
        "The network of w2 was away for some minutes. It is mended: pings go well, and psql from w1 and from w3 "
        "reaches the database at once. Processors and disks are idle.",
    ),
    mode="metastable",
    cause=frozenset(CAUSES),
    root_cause="The connection pools of both instances of the API lost all connections while w2 could not be "
    "reached. They are in a pause between two tries that has grown to minutes, and every request waits for a "
    "connection in vain. Network and database are well.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=LinkDegraded(loss_percent=100), node="w2", ends_after_s=AWAY_S, bites_within_s=60,
        ),
    ),
    oracles=judged(PERMITTED),
    permitted=PERMITTED,
    challenge=(restarted("w1", API), restarted("w3", API)),
    reference=Script(
        title="start both instances of the API anew",
        steps=tuple((n, f"sudo systemctl restart {API}; {api_is_back(n)}") for n in ("w1", "w3")),
    ),
    decoys=(
        wait("out_of_bounds"),
        restart("w2", POSTGRES, fails_as="out_of_bounds"),
        stop_traffic(),
        decoy("another cable for w2", ("hardware", "replace-cable w2"), ("wait", "5"), fails_as="out_of_bounds"),
    ),
    case="41: the network heals, the pool does not",
)  # fmt: skip
