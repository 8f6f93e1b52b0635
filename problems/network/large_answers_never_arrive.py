"""Searches hang and bookings work: large packets from w2 to w1 vanish, and nobody is told.

Short answers fit in small packets. A plain ping passes, and a big one, too, where it may be cut up; new
connections hang like old ones, so restarting anything is no help.
"""

from __future__ import annotations

from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import API, POSTGRES, decoy, judged, permits, restart, restarted, told, wait
from problems.probes import network_heals
from problems.words import WORDS, triple

CAUSE = triple("network between w1 and w2", "large packets vanish", "one direction of one link")
PERMITTED = permits()

PROBLEM = Problem(
    name="large_answers_never_arrive",
    title="Searching hangs, everything else works",
    statement=told(
        "booking: GET /flights: 40 % above 4 s or failed",
        'Users say: "The list of flights does not come. If I have a booking already I can see it at once."',
        "The health pages of both instances are green. Pings between all nodes go well.",
        "A switch was replaced last night.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="IP packets above 576 bytes from w2 to w1 vanish without an ICMP answer, as behind a device "
    "with a wrong MTU. Lists of flights do not fit; the API on w1 waits for them until its time is over.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=LinkDegraded(loss_percent=0, mtu=576, direction="out", peers=("w1",)), node="w2"
        ),
    ),
    oracles=judged(PERMITTED, network_heals()),
    permitted=PERMITTED,
    challenge=(restarted("w1", API),),
    reference=Script(
        title="have the switch port of w2 carry packets of the usual size",
        steps=(("hardware", "reset-switch-port w2"), ("wait", "10")),
    ),
    alternative=Script(
        title="another cable and port for w2", steps=(("hardware", "replace-cable w2"), ("wait", "10"))
    ),
    decoys=(
        wait(),
        restart("w1", API),
        restart("w2", POSTGRES),
        decoy("another cable for the wrong node", ("hardware", "replace-cable w3"), ("wait", "10"),
              fails_as="cause_left"),
        decoy(
            "make all packets of w2 small, so that its links carry less for ever",
            ("w2", "sudo ip link set dev lan mtu 576; sleep 10"),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="33: an MTU black hole: small works, large hangs",
)  # fmt: skip
