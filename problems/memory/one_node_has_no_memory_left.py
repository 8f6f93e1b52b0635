"""Everything on w3 waits for memory: something that is no service has leaked nearly all of it."""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.memory.memory_pressure import MemoryPressure
from problems.common import (
    API,
    POSTGRES,
    api_is_back,
    decoy,
    drain,
    judged,
    permits,
    restart,
    restarted,
    told,
    wait,
)
from problems.probes import memory_available
from problems.words import WORDS, triple

CAUSE = triple("memory of w3", "leaked by a neighbour", "one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="one_node_has_no_memory_left",
    title="One node is slow, and its services are killed now and then",
    statement=told(
        "w3: services slow or started anew; booking: 95th percentile above 2 s",
        'Users say: "It hangs at times."',
        "The services of w3 use as much as they did last week.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="A process on w3 that belongs to no service holds nearly all memory of the node and takes what "
    "others free. Files are read from the disk again and again, and what needs memory waits for it.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=MemoryPressure(available_mib=64), node="w3", bites_within_s=120,
            shows="awk '/^MemAvailable/ { exit $2 > 90000 }' /proc/meminfo",
        ),
    ),
    oracles=judged(PERMITTED, memory_available("w3")),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(
        title="boot w3", steps=(("hardware", "power-cycle w3"), ("wait", "20"), ("w3", api_is_back("w3")))
    ),
    decoys=(
        wait(),
        restart("w3", API, POSTGRES),
        drain("w3"),
        decoy(
            "stop the worker of w3, which has a twin",
            ("w3", "sudo systemctl disable --now booking-worker.service"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="23: a neighbour takes the memory, the database pays",
)  # fmt: skip
