"""Nothing works since a hiccup of the disk that was over in half a minute.

Clients ask again, at once, when no answer comes. While the disk stood still they piled up before the API, which
now works through a queue of requests whose clients have left, and have asked again. Without the hiccup the same
clients are served well, and with it clients that ask once are, too.
"""

from __future__ import annotations

from labctl.hardware.faults.disk_degraded import DiskDegraded
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    API,
    POSTGRES,
    RELOAD_WEB,
    SERVED,
    WEB,
    decoy,
    edited,
    judged,
    permits,
    restart,
    restarted,
    told,
    until,
    wait,
)  # fmt: skip
from problems.words import WORDS, triple

CAUSE = triple("clients", "ask again faster than they can be served", "all nodes")
CONFIG = "/etc/nginx/nginx.conf"
PERMITTED = permits(f"w1:content {CONFIG}")
CAP = edited(CONFIG, "s/max_fails=3 fail_timeout=10s;/max_fails=3 fail_timeout=10s max_conns=12;/")
LONGER = edited(CONFIG, "s/proxy_read_timeout 4s/proxy_read_timeout 60s/")
ANEW = f"sudo systemctl restart {API}"

PROBLEM = Problem(
    name="nothing_works_since_a_hiccup",
    title="Nothing works since a hiccup",
    statement=told(
        "booking: 95 % of all requests without an answer in time, for 10 minutes",
        'Users say: "It does not answer. I keep trying."',
        "The disk of w2 stood still for half a minute when this began. Since then it is as quick as ever, and the "
        "database has next to nothing to do. Most requests come from the new app, which is very keen.",
    ),
    mode="metastable",
    cause=frozenset({CAUSE}),
    root_cause="A stall of the disk, now over, made requests time out. Clients repeat them at once, up to fifteen "
    "times, faster than they can be served. The API's queue is full of requests that nobody waits for any more, "
    "so that each new one is late as well. Only letting fewer in ends it.",
    vocabulary=WORDS,
    faults=(Planted(fault=DiskDegraded(stall=True), node="w2", ends_after_s=30, bites_within_s=60),),
    oracles=judged(PERMITTED),
    permitted=PERMITTED,
    clients="problems.metastable.impatient:load_plan",
    challenge=(restarted("w1", WEB),),
    trigger_again=True,
    reference=Script(
        title="let in no more than can be served, and begin anew",
        steps=(("w1", f"{CAP}; {RELOAD_WEB}"), ("w1", ANEW), ("w3", ANEW), ("w1", f"{until(SERVED)}; sleep 20")),
    ),
    decoys=(
        wait("out_of_bounds"),
        restart("w2", POSTGRES, fails_as="out_of_bounds"),
        restart("w1", WEB, fails_as="out_of_bounds"),
        decoy("wait longer for the API", ("w1", f"{LONGER}; {RELOAD_WEB}; sleep 20"), fails_as="out_of_bounds"),
        decoy(
            "let nobody in for a minute, and change nothing",
            ("w1", f"sudo systemctl stop {WEB}; sleep 60; sudo systemctl start {WEB}; sleep 20"),
            fails_as="did_not_last",
        ),
    ),
    case="43: a storm that goes on after its trigger",
)  # fmt: skip
