"""Answers pause now and then: the link of w3 loses packets in bursts.

An instance of the API is behind it, and the standby: each burst costs TCP a pause of some hundred milliseconds or
more. No counter of any interface moves, and short looks find nothing.
"""

from __future__ import annotations

from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import API, decoy, drain, judged, permits, restart, restarted, told, wait
from problems.probes import network_heals
from problems.words import WORDS, triple

CAUSE = triple("network interface of w3", "loses packets in bursts", "all links of one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="answers_pause_now_and_then",
    title="Answers pause now and then",
    statement=told(
        "booking: 95th percentile of all requests above 2 s, for 10 minutes",
        'Users say: "Mostly it is quick. Then one click takes five seconds, and the next is quick again."',
        "Errors are few. The databases and their disks are idle.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The link of w3 loses a quarter of all packets, in bursts, as behind a bad cable. What goes "
    "through the API on w3, and replication to it, waits for TCP to send again. No interface counts an error.",
    vocabulary=WORDS,
    faults=(Planted(fault=LinkDegraded(loss_percent=25, burst=6, seed=11), node="w3"),),
    oracles=judged(PERMITTED, network_heals()),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(title="another cable for w3", steps=(("hardware", "replace-cable w3"), ("wait", "10"))),
    alternative=Script(title="reseat the card of w3", steps=(("hardware", "reseat-nic w3"), ("wait", "10"))),
    decoys=(
        wait(),
        restart("w3", API),
        drain("w3"),
        decoy("another cable for the wrong node", ("hardware", "replace-cable w2"), ("wait", "10"),
              fails_as="cause_left"),
    ),
    case="37: answers that are late by a time-out, for one lost packet",
)  # fmt: skip
