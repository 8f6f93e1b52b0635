"""Some bookings are refused although all is green: on w3 the database's name means another machine.

A line that somebody left in /etc/hosts after a drill leads the API of w3 to the standby, which reads and does not
write. Its health page asks for a read, and is happy.
"""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.machine.setting_changed import SettingChanged
from problems.common import (
    API,
    POSTGRES,
    api_is_back,
    decoy,
    drain,
    edited,
    judged,
    permits,
    restart,
    restarted,
    told,
    wait,
)  # fmt: skip
from problems.probes import resolves
from problems.words import WORDS, triple

CAUSE = triple("name resolution of w3", "points to a wrong address", "one node")
PERMITTED = permits("w3:content /etc/hosts")
RESTARTED = f"sudo systemctl restart {API}; {api_is_back('w3')}"
PROMOTE = f"sudo -u postgres psql -XAtqc 'SELECT pg_promote()'; sudo systemctl status --no-pager {POSTGRES}"

PROBLEM = Problem(
    name="some_bookings_are_refused",
    title="Some bookings are refused",
    statement=told(
        "booking: 503 of 40 % of PUT, PATCH and DELETE /bookings",
        'Users say: "I can search as often as I like. Booking works at the second or third try."',
        "Both instances of the API say that they are healthy. Last week there was a drill of failing over.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="In /etc/hosts of w3 the name db.booking stands for w3 itself, and goes before the name server. "
    "The API of w3 uses the standby, which refuses to write (25006).",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=SettingChanged(
                file="/etc/hosts", key="10.77.0.3", value="w3 db.booking", reload_unit="booking-api.service"
            ),
            node="w3", shows="getent ahostsv4 db.booking | grep -q '^10.77.0.3'", bites_within_s=60,
        ),
    ),
    oracles=judged(PERMITTED, resolves("w3", "db.booking", "10.77.0.2")),
    permitted=PERMITTED,
    challenge=(restarted("w3", API),),
    reference=Script(
        title="take the name out of /etc/hosts, and restart the API",
        steps=(("w3", f"{edited('/etc/hosts', 's/ db.booking//')}; {RESTARTED}"),),
    ),
    alternative=Script(
        title="write the right address into /etc/hosts",
        steps=(
            ("w3", f"{edited('/etc/hosts', 's/ db.booking//; s/^10.77.0.2 w2.*/10.77.0.2 w2 db.booking/')}"),
            ("w3", RESTARTED),
        ),
    ),
    decoys=(
        wait(),
        restart("w3", API),
        drain("w3"),
        decoy("make the standby take writes", ("w3", PROMOTE), fails_as="cause_left"),
    ),
    case="35: one address, two holders: a name that leads to a wrong machine after a failover",
)  # fmt: skip
