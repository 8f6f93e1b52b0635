"""Services of w3 cannot open files, and whoever looks as root can: the system's table of open files is full.

The limits of each service are far away. Something has set the system's limit too low, and something else has used
it up; root is not held by it.
"""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.memory.fds_exhausted_system import FdsExhaustedSystem
from problems.common import API, api_is_back, decoy, drain, judged, permits, restart, restarted, told, wait
from problems.probes import open_files
from problems.words import WORDS, triple

CAUSE = triple("kernel of w3", "open files used up", "one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="errors_for_all_but_root",
    title="Services of one node fail, and root sees nothing",
    statement=told(
        "w3: API, standby and worker log errors; booking: 503 of a share of all requests",
        'Users say: "Now and then a click fails."',
        "Somebody logged in as root on w3: every command works, the disks have room.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="All open files that the kernel of w3 allows (fs.file-max, which is low) are in use, most by a "
    "process of nobody. Every open, accept and socket of those who are not root answers ENFILE.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=FdsExhaustedSystem(leak=2000), node="w3", bites_within_s=60,
            shows="! runuser -u nobody -- true || ! runuser -u nobody -- cat /etc/hostname >/dev/null 2>&1",
        ),
    ),
    oracles=judged(PERMITTED, open_files("w3")),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(
        title="boot w3", steps=(("hardware", "power-cycle w3"), ("wait", "20"), ("w3", api_is_back("w3")))
    ),
    decoys=(
        wait(),
        restart("w3", API),
        drain("w3"),
        decoy(
            "end what the API runs, so that it begins anew",
            ("w3", "sudo systemctl kill booking-api.service; sleep 15"),
            fails_as="cause_left",
        ),
    ),
    case="39 and 61: errno that a look as root does not get",
)  # fmt: skip
