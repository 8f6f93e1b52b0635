"""An instance of the API stays down: it crashed some times in a row, and was given up.

What made it crash is over. The limit of starts that somebody put into its unit lets nothing but a person start it
again, and will do so the next time, too.
"""

from __future__ import annotations

from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.machine.setting_changed import SettingChanged
from node_agent.faults.process.process_kill import ProcessKill
from problems.common import (
    API,
    api_is_back,
    decoy,
    drain,
    edited,
    judged,
    permits,
    restarted,
    stop_monitor,
    told,
    up,
    wait,
)  # fmt: skip
from problems.probes import api_answers
from problems.words import WORDS, triple

CAUSE = triple("booking-api on w3", "given up after a trigger that is over", "one unit")
UNIT = "/etc/systemd/system/booking-api.service"
PERMITTED = permits(f"w3:content {UNIT}")
KEY = "StartLimitIntervalSec"

SERIES = (
    f"i=0; while [ $i -lt 8 ] && ! systemctl is-failed -q {API}; do systemctl kill -s SEGV {API}; "
    "i=$((i+1)); sleep 4; done; true"
)
"""The crashes, one after the other, as something made it do that is mended by now."""

PROBLEM = Problem(
    name="instance_stays_down",
    title="One instance of the API stays down",
    statement=told(
        "booking-api on w3: down for 20 minutes",
        'Users say: "It is a bit slower than usual."',
        "Something made it crash several times; a colleague found that, and it is mended. Last week's change made "
        "our units stricter.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="The unit of booking-api on w3 has a limit of starts in ten minutes. A series of crashes, now "
    "over, reached it; systemd starts the unit no more (start-limit-hit). The next series does it again.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=SettingChanged(file=UNIT, section="Unit", key=KEY, value="600"),
            node="w3", then="systemctl daemon-reload", shows=f"grep -q '^{KEY}=600' {UNIT}",
        ),
        Planted(
            fault=ProcessKill(unit="booking-api.service", signal="SIGSEGV", restore=False), node="w3", at_s=1,
            then=SERIES, shows=f"systemctl is-failed -q {API}", bites_within_s=60,
        ),
    ),
    oracles=judged(PERMITTED, api_answers("w3")),
    permitted=PERMITTED,
    challenge=(("w3", SERIES), restarted("w3", API)),
    reference=Script(
        title="take the limit out, and start the instance",
        steps=(
            ("w3", f"{edited(UNIT, f's/^{KEY}=.*/{KEY}=0/')}; sudo systemctl daemon-reload"),
            ("w3", f"{up(API)}; {api_is_back('w3')}"),
        ),
    ),
    decoys=(
        wait(),
        drain("w3"),
        stop_monitor("w3"),
        decoy("start it, and leave the limit", ("w3", f"{up(API)}; {api_is_back('w3')}"), fails_as="did_not_last"),
    ),
    case="27: a service stays dead after a short outage: the start limit",
)  # fmt: skip
