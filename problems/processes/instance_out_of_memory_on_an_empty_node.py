"""An instance of the API says that it is out of memory, on a node that has plenty.

No limit of the unit is near, and no OOM killer was at work. The kernel of w3 refuses larger mappings, for this
unit only, until the node boots.
"""

from __future__ import annotations

from ebpf.memory_alloc_error import MemoryAllocError
from labctl.run.problem import Planted, Problem, Script
from problems.common import API, api_is_back, decoy, drain, edited, judged, permits, restart, restarted, told, wait
from problems.probes import api_answers
from problems.words import WORDS, triple

CAUSE = triple("booking-api on w3", "memory is refused", "one unit")
PERMITTED = permits()
UNIT = "/etc/systemd/system/booking-api.service"

PROBLEM = Problem(
    name="instance_out_of_memory_on_an_empty_node",
    title="One instance of the API does not come up after its restart",
    statement=told(
        "booking-api on w3: down since the night's restart of services",
        'Users say: "It is a bit slow."',
        "Its log speaks of memory. `free` on w3 shows that more than half of it is there to be had.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The kernel of w3 answers ENOMEM when booking-api asks for a mapping of a megabyte or more, "
    "although neither the node nor the unit is near a limit. It ends with a boot of w3.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=MemoryAllocError(unit="booking-api.service", min_size_bytes=1 << 20), node="w3",
            then=f"systemctl restart --no-block {API}", bites_within_s=120,
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
        drain("w3"),
        decoy(
            "allow the unit more memory",
            ("w3", f"{edited(UNIT, 's/^MemoryMax=.*/MemoryMax=infinity/')}; sudo systemctl daemon-reload"),
            ("w3", f"timeout 60 sudo systemctl restart {API}; sleep 10"),
            fails_as="cause_left",
        ),
        decoy(
            "promise more memory than there is",
            ("w3", "sudo sysctl -w vm.overcommit_memory=1; sudo systemctl restart booking-api.service; sleep 10"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="21: memory refused on a machine with room",
)  # fmt: skip
