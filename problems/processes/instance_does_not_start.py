"""An instance of the API does not start any more: it is told that it may not read its own secret.

The file's rights are as they always were, its content is right, and its user can read it by hand. The kernel of w3
refuses it, for this unit only, until the node boots.
"""

from __future__ import annotations

from ebpf.file_error import FileError
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    API,
    api_is_back,
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
from problems.probes import api_answers
from problems.words import WORDS, triple

CAUSE = triple("booking-api on w3", "opening files is refused", "one unit")
PERMITTED = permits()

PROBLEM = Problem(
    name="instance_does_not_start",
    title="One instance of the API does not start",
    statement=told(
        "booking-api on w3: restarts again and again since the night's restart of services",
        'Users say: "It is a bit slow."',
        "Its log says that permission is denied for a file whose rights nobody has changed.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The kernel of w3 answers EACCES when booking-api opens /etc/booking/secret, whatever the "
    "rights of the file say; others open it well. It ends with a boot of w3.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=FileError(
                unit="booking-api.service", path="/etc/booking/secret", operation="open", errno="EACCES"
            ),
            node="w3", then=f"systemctl restart --no-block {API}", bites_within_s=120,
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
        stop_monitor("w3"),
        decoy(
            "let everybody read the secret",
            ("w3", f"sudo chmod 644 /etc/booking/secret; sudo systemctl restart {API}; sleep 10"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="61: permission denied, and no rights are missing",
)  # fmt: skip
