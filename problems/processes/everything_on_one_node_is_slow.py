"""Everything on w1 is slow: a neighbour has taken its CPU."""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.process.cpu_burn import CpuBurn
from problems.common import API, WEB, decoy, judged, permits, restart, restarted, stop_traffic, told, wait
from problems.probes import no_process
from problems.words import WORDS, triple

CAUSE = triple("CPU of w1", "taken by a neighbour", "one node")
PERMITTED = permits()
NAME = "backup-gz"

PROBLEM = Problem(
    name="everything_on_one_node_is_slow",
    title="Everything is slow",
    statement=told(
        "booking: 95th percentile of all requests above 3 s",
        'Users say: "It is slow. All of it, all the time."',
        "The number of requests is that of any other day. The database is idle.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="Processes that belong to no service use all CPU time of w1, with a weight that leaves next to "
    "nothing for nginx, the API and the cache there.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=CpuBurn(workers=6, weight=1000, process_name=NAME), node="w1", bites_within_s=60,
            shows=f"[ $(ps -eo comm= | grep -cx {NAME}) -ge 6 ]",
        ),
    ),
    oracles=judged(PERMITTED, no_process("w1", NAME)),
    permitted=PERMITTED,
    challenge=(restarted("w1", API),),
    reference=Script(title="end the neighbour", steps=(("w1", f"sudo pkill -KILL -x {NAME}; sleep 10"),)),
    decoys=(
        wait(),
        restart("w1", WEB, API),
        stop_traffic(),
        decoy(
            "be nice to services: renice what takes the CPU",
            ("w1", f"for p in $(pgrep -x {NAME}); do sudo renice -n 19 -p $p; done; sleep 10"),
            fails_as="cause_left",
        ),
    ),
    case="29: the CPU taken away, the application blamed",
)  # fmt: skip
