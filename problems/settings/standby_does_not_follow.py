"""The standby does not follow any more: it asks for a slot that there is not.

Both servers run, and each is well by itself. The primary keeps WAL for the right slot, up to its limit; then the
standby has to be made anew. Making the slot that it asks for is the wrong half of a repair.
"""

from __future__ import annotations

from labctl.oracles.replication import Replication
from labctl.run.problem import Planted, Problem, Script
from node_agent.faults.machine.setting_changed import SettingChanged
from problems.common import DATA, POSTGRES, decoy, judged, permits, restart, restarted, stop_monitor, told, wait
from problems.words import WORDS, triple

CAUSE = triple("PostgreSQL on w3", "wrong setting", "replication only")
PERMITTED = permits()
SETS = "sudo -u postgres psql -XAtqc \"ALTER SYSTEM SET primary_slot_name = 'w3'\" -c 'SELECT pg_reload_conf()'"
STREAMING = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'"
MAKES = "SELECT pg_create_physical_replication_slot('w3_old', true)"

PROBLEM = Problem(
    name="standby_does_not_follow",
    title="The standby is behind, and falls further behind",
    statement=told(
        "w3: replay is 4 minutes behind; w2: WAL of a slot that nobody reads is kept",
        "Users say nothing.",
        "Both servers run. A colleague tidied up the settings of w3 before lunch.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="primary_slot_name of the standby on w3 is w3_old. There is no such slot on the primary, which "
    "refuses to stream, and the slot w3 keeps WAL for nobody.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=SettingChanged(
                file=f"{DATA}/postgresql.auto.conf", key="primary_slot_name", value="w3_old",
                reload_unit=POSTGRES, take="reload",
            ),
            node="w3", bites_within_s=60,
            shows=f'cd /; [ "$(runuser -u postgres -- psql -XAtqc "{STREAMING}")" = 0 ]',
        ),
    ),
    oracles=judged(PERMITTED, Replication(as_aspect="cause")),
    permitted=PERMITTED,
    challenge=(restarted("w3", POSTGRES),),
    reference=Script(title="name the right slot", steps=(("w3", f"{SETS}; sleep 15"),)),
    decoys=(
        wait(),
        restart("w3", POSTGRES),
        restart("w2", POSTGRES),
        stop_monitor("w3"),
        decoy(
            "make the slot that it asks for",
            ("w2", f'sudo -u postgres psql -XAtqc "{MAKES}"; sleep 15'),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="17 and 19: slots, and standbys that do not follow",
)  # fmt: skip
