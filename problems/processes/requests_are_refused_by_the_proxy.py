"""The proxy cannot reach one instance: a program on w1 holds all local ports towards it.

Connections to everybody else open as ever, and the instance answers whoever asks from another node. What holds the
ports is no service and is left over from something; it ends with a boot of w1.
"""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.network.ports_exhausted import PortsExhausted
from problems.common import (
    ADDRESS,
    API,
    SERVED,
    WEB,
    drain,
    judged,
    permits,
    restart,
    restarted,
    stop_monitor,
    told,
    until,
    wait,
)  # fmt: skip
from problems.probes import connects
from problems.words import WORDS, triple

CAUSE = triple("kernel of w1", "local ports used up", "one link")
PERMITTED = permits("w1:sysctl net.ipv4.ip_local_port_range")
NARROW = "sysctl -q -w net.ipv4.ip_local_port_range='58000 59999'"
"""As an old hardening guide has it; a boot forgets it. Holding fewer ports takes less time, too."""


PROBLEM = Problem(
    name="requests_are_refused_by_the_proxy",
    title="nginx says that it cannot assign an address",
    statement=told(
        "nginx on w1: [crit] connect() failed (99: Cannot assign requested address), many times a minute",
        'Users say: "It is slower than yesterday, sometimes there is an error."',
        "The API of w3 is healthy when asked from w2. The number of requests is that of any other day.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="A process on w1 that belongs to no service holds a connection from every local port to the API "
    "of w3. nginx gets no port for connections there (EADDRNOTAVAIL); towards others ports are free.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=PortsExhausted(address=ADDRESS["w3"], port=8080), node="w1", first=NARROW, bites_within_s=120,
            shows=f"! curl -sS -m 5 -o /dev/null http://{ADDRESS['w3']}:8080/health 2>/dev/null",
        ),
    ),
    oracles=judged(PERMITTED, connects("w1", ADDRESS["w3"], 8080)),
    permitted=PERMITTED,
    challenge=(restarted("w1", WEB),),
    reference=Script(
        title="boot w1", steps=(("hardware", "power-cycle w1"), ("wait", "20"), ("w1", until(SERVED, 300)))
    ),
    decoys=(
        wait(),
        restart("w1", WEB),
        restart("w3", API),
        drain("w3"),
        stop_monitor("w1"),
    ),
    case="39: local ports used up towards one upstream",
)  # fmt: skip
