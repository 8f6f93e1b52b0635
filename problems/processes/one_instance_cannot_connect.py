"""One instance of the API cannot open connections to the database, while everything beside it on the same node
can.

No packet leaves: the kernel of w3 refuses the call, for this unit only. What is wrong is in the kernel's
memory, so that it is gone after a boot, and nothing less.
"""

from __future__ import annotations

from ebpf.connect_error import ConnectError
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    ADDRESS,
    API,
    POSTGRES,
    api_is_back,
    drain,
    judged,
    permits,
    restart,
    restarted,
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.probes import api_answers
from problems.words import WORDS, triple

CAUSE = triple("booking-api on w3", "connecting is refused", "one unit")
PERMITTED = permits()

PROBLEM = Problem(
    name="one_instance_cannot_connect",
    title="One instance of the API has lost the database",
    statement=told(
        "booking: 503 of 45 % of all requests; API on w3: health is red since its restart",
        'Users say: "Every other click fails."',
        "psql on w3 reaches the database on w2 without trouble. A dump of packets on w3 shows nothing.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The kernel of w3 answers ECONNREFUSED to each connect of booking-api to the database, before any "
    "packet is sent; other programs of w3 connect well. The unit's settings are right. It ends with a boot of w3.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=ConnectError(unit="booking-api.service", address=ADDRESS["w2"], port=5432), node="w3",
            then=f"systemctl restart {API}", bites_within_s=120,
        ),
    ),
    oracles=judged(PERMITTED, api_answers("w3")),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(
        title="boot w3", steps=(("hardware", "power-cycle w3"), ("wait", "20"), ("w3", api_is_back("w3")))
    ),
    decoys=(
        wait(),
        restart("w3", API),
        restart("w2", POSTGRES),
        drain("w3"),
        stop_monitor("w3"),
    ),
    case="63: calls that fail where no packet leaves",
)  # fmt: skip
