"""The standby cannot catch up: the link was away for a minute, and what it missed is gone.

The trigger is over; the primary has recycled what the standby needs, as its limit says it shall, and the slot is
lost. No waiting and no restart brings it back: it has to be made anew.
"""

from __future__ import annotations

from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.oracles.replication import Replication
from labctl.run.problem import Planted, Problem, Script
from problems.common import (
    DATA,
    POSTGRES,
    decoy,
    judged,
    permits,
    reboot,
    restart,
    restarted,
    stop_monitor,
    told,
    wait,
)  # fmt: skip
from problems.words import WORDS, triple

CAUSE = triple("PostgreSQL on w3", "cannot follow after a trigger that is over", "replication only")
PERMITTED = permits()
NIGHT = (
    "cd /; i=0; while [ $i -lt 14 ]; do i=$((i+1)); runuser -u postgres -- timeout 60 psql -XAtqc "
    "\"SELECT pg_logical_emit_message(true, 'night', 'x'), pg_switch_wal()\" >/dev/null 2>&1; done; "
    "runuser -u postgres -- timeout 120 psql -XAtqc CHECKPOINT >/dev/null 2>&1"
)
"""More WAL than the slot may keep, while the standby does not hear: the night's jobs, in short."""

LOST = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = 'w3'"
NEW_SLOT = "SELECT pg_drop_replication_slot('w3'), pg_create_physical_replication_slot('w3', true)"
CLONE = (
    f"sudo systemctl stop {POSTGRES}; sudo -u postgres rm -r {DATA}; sudo -u postgres pg_basebackup -h 10.77.0.2 "
    f"-U replicator -w -D {DATA} -X stream -S w3 -c fast -R && sudo systemctl start {POSTGRES}; sleep 20"
)
KEEPS = "ALTER SYSTEM SET max_slot_wal_keep_size = '400MB'"

PROBLEM = Problem(
    name="standby_cannot_catch_up",
    title="The standby has not followed since last night",
    statement=told(
        "w3: replay stands still since 02:30",
        "Users say nothing.",
        "The link of w3 was away for about a minute at 02:30, during the night's jobs; it is well again since.",
    ),
    cause=frozenset({CAUSE}),
    root_cause="While w2 and w3 could not reach each other, w2 wrote more WAL than a slot may keep. The slot "
    "w3 is lost, and the standby asks for WAL that there is not any more. The link is well.",
    vocabulary=WORDS,
    faults=(
        Planted(
            fault=LinkDegraded(loss_percent=100, peers=("w3",)), node="w2", then=NIGHT, ends_after_s=10,
            bites_within_s=120,
            shows=f'cd /; [ "$(runuser -u postgres -- psql -XAtqc "{LOST}")" = t ]',
        ),
    ),
    oracles=judged(PERMITTED, Replication(as_aspect="cause")),
    permitted=PERMITTED,
    challenge=(restarted("w3", POSTGRES),),
    reference=Script(
        title="make the slot and the standby anew",
        steps=(("w2", f'sudo -u postgres psql -XAtqc "{NEW_SLOT}"'), ("w3", CLONE)),
    ),
    decoys=(
        wait(),
        restart("w3", POSTGRES),
        reboot("w3"),
        stop_monitor("w3"),
        decoy(
            "have slots keep more from now on",
            ("w2", f'sudo -u postgres psql -XAtqc "{KEEPS}" -c "SELECT pg_reload_conf()"'),
            fails_as="off_the_permitted_list",
        ),
    ),
    case="19: a standby that cannot catch up after an outage",
)  # fmt: skip
