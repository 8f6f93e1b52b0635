"""w3 is dead for good: the service has to go on without it, and without waiting for it.

Clients are nearly well already, since nginx asks the other instance. What is left of w3 hurts later: an upstream
that is tried again and again, and a slot that keeps WAL for a standby that will not come back.
"""

from __future__ import annotations

from labctl.hardware.faults.power_loss import PowerLoss
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    POSTGRES,
    RELOAD_WEB,
    WEB,
    decoy,
    edited,
    judged,
    permits,
    restart,
    restarted,
    stop_monitor,
    told,
    until,
    wait,
)  # fmt: skip
from problems.probes import goes_on_without
from problems.words import WORDS, triple

CAUSE = triple("power of w3", "is off", "one node")
PERMITTED = permits("w1:content /etc/nginx/nginx.conf", "db:slot w3")
DRAIN = f"{edited('/etc/nginx/nginx.conf', '/server 10.77.0.3:8080/d')}; {RELOAD_WEB}"
DROP = until("sudo -u postgres psql -XAtqc \"SELECT pg_drop_replication_slot('w3')\"")
"""The primary takes some time to notice that nobody reads the slot any more; until then it cannot be dropped."""

MEMBER = "etcdctl member list | awk -F, '$3 ~ /w3/ { print $1 }'"

PROBLEM = Problem(
    name="one_machine_is_dead",
    title="One machine does not come back",
    statement=told(
        "w3: no answer to anything, since 03:12",
        'Users say: "Some clicks take a second longer."',
        "Remote hands say: the power supply and the board of w3 are burnt. There will be another machine, with "
        "another name, in a week. Leave w3 off, and see that the service is well without it until then.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="w3 is dead. nginx still sends requests to it, the primary keeps WAL for its standby, and etcd "
    "counts it as a member.",
    vocabulary=WORDS,
    faults=(Planted(fault=PowerLoss(), node="w3", may_stay=True, bites_within_s=60),),
    oracles=judged(PERMITTED, *goes_on_without("w3"), without=("w3",), standby=False),
    permitted=PERMITTED,
    challenge=(restarted("w1", WEB), restarted("w2", POSTGRES)),
    reference=Script(
        title="take w3 out of nginx, of replication, and of etcd",
        steps=(("w1", DRAIN), ("w2", DROP), ("w1", f"etcdctl member remove $({MEMBER})")),
    ),
    decoys=(
        wait(),
        restart("w1", WEB),
        decoy("take w3 out of nginx only", ("w1", DRAIN), fails_as="cause_left"),
        stop_monitor("w1"),
    ),
    case="17: a slot whose consumer is gone; 3: a member that is gone",
)
