"""A node comes and goes: the link of w3 is lost for some seconds, and comes back, again and again."""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.network.link_flap import LinkFlap
from problems.common import API, POSTGRES, drain, judged, permits, restart, restarted, stop_monitor, told, wait
from problems.probes import network_heals
from problems.words import WORDS, triple

CAUSE = triple("network interface of w3", "goes down and up again", "all links of one node")
PERMITTED = permits()

PROBLEM = Problem(
    name="node_comes_and_goes",
    title="The standby, the API and etcd of w3 come and go",
    statement=told(
        "w3: the standby is behind, is well, is behind; etcd: leader changes; API on w3: up, down, up",
        'Users say: "Sometimes it hangs for a few seconds."',
        "It began at 14:05. Nothing was changed today.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The link of w3 goes down for four seconds and comes up for six, in turn, as of a network card "
    "or cable that is about to die. Everything that w3 does with others stalls and goes on.",
    vocabulary=WORDS,
    faults=(Planted(fault=LinkFlap(interface="lan", down_s=4, up_s=6), node="w3"),),
    oracles=judged(PERMITTED, network_heals()),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(title="reseat the card of w3", steps=(("hardware", "reseat-nic w3"), ("wait", "15"))),
    alternative=Script(title="another cable for w3", steps=(("hardware", "replace-cable w3"), ("wait", "15"))),
    decoys=(
        wait(),
        restart("w3", API, POSTGRES),
        drain("w3"),
        stop_monitor("w3"),
    ),
    case="19: a standby that cannot keep up after each outage",
)
