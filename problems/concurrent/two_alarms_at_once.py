"""Two alarms at once, and neither is the cause of the other: the clock of w3, and a standby that asks for no slot.

Users feel the first and not the second. Whoever stops after the first has left the service without a standby.
"""

from __future__ import annotations

from labctl.oracles.clocks import Clocks
from labctl.oracles.replication import Replication
from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.machine.clock_jump import ClockJump
from node_agent.faults.machine.setting_changed import SettingChanged
from problems.common import (
    API,
    DATA,
    POSTGRES,
    decoy,
    judged,
    permits,
    restart,
    restarted,
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.settings.standby_does_not_follow import SETS, STREAMING
from problems.time.sessions_are_rejected import SET
from problems.words import WORDS, triple

CAUSES = (
    triple("clock of w3", "shows an earlier time", "one node"),
    triple("PostgreSQL on w3", "wrong setting", "replication only"),
)
PERMITTED = permits()

PROBLEM = Problem(
    name="two_alarms_at_once",
    title="Users are logged out, and the standby is behind",
    statement=told(
        "booking: 401 of 45 % of all requests; w3: replay is behind, and falls further behind",
        'Users say: "I am told to log in again, all the time."',
        "Both alarms came within a minute, after the maintenance of w3.",
    ),
    mode="concurrent",
    cause=frozenset(CAUSES),
    root_cause="The maintenance of w3 left two things: its wall clock is four minutes behind, so that tokens "
    "of one instance are not believed by the other; and its standby asks for a slot that there is not.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=SettingChanged(
                file=f"{DATA}/postgresql.auto.conf", key="primary_slot_name", value="w3_old",
                reload_unit=POSTGRES, take="reload",
            ),
            node="w3", shows=f'cd /; [ "$(runuser -u postgres -- psql -XAtqc "{STREAMING}")" = 0 ]',
        ),
        Planted(
            fault=ClockJump(by_s=-240), node="w3", at_s=1, bites_within_s=90,
            shows="journalctl -u booking-api.service -n 60 --no-pager -o cat | grep -q '401 .*not yet valid'",
        ),
    ),
    oracles=judged(PERMITTED, Clocks(as_aspect="cause"), Replication(as_aspect="cause")),
    permitted=PERMITTED,
    challenge=(restarted("w3", API, POSTGRES),),
    reference=Script(
        title="set the clock, then name the right slot", steps=(("w3", SET), ("w3", f"{SETS}; sleep 15"))
    ),
    decoys=(
        wait(),
        restart("w3", API, POSTGRES),
        decoy("set the clock, and leave the standby", ("w3", SET), fails_as="cause_left"),
        decoy("name the slot, and leave the clock", ("w3", f"{SETS}; sleep 15"), fails_as="cause_left"),
        stop_monitor("w3"),
    ),
    case="47 and 19, together",
)  # fmt: skip
