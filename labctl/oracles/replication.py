"""Whether the standby follows, and could take over: something new is sent through, and a booking read there.

That both servers run, and that one calls itself streaming, is not it: a standby whose replay is stuck does that.
"""

from __future__ import annotations

import re

from labctl.oracles.nodes import sections
from labctl.oracles.postgres import ask
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_OF_PRIMARY = """
\\echo '## id'
SELECT system_identifier, pg_is_in_recovery() FROM pg_control_system();
\\echo '## mark'
SELECT pg_log_standby_snapshot();
SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
\\echo '## last'
SELECT o.id, o.reference, b.version FROM outbox o JOIN bookings b USING (reference) ORDER BY o.id DESC LIMIT 1;
\\echo '## senders'
SELECT application_name, client_addr, state, coalesce(pg_wal_lsn_diff(sent_lsn, replay_lsn), -1)
  FROM pg_stat_replication;
\\echo '## slots'
SELECT slot_name, slot_type, active, wal_status FROM pg_replication_slots ORDER BY slot_name;
"""
_OF_STANDBY = """
\\echo '## id'
SELECT system_identifier, pg_is_in_recovery() FROM pg_control_system();
\\echo '## receiver'
SELECT status, slot_name, received_tli FROM pg_stat_wal_receiver;
\\echo '## reached'
DO $$
BEGIN
  FOR turn IN 1..%(turns)d LOOP
    EXIT WHEN pg_last_wal_replay_lsn() >= '%(lsn)s'::pg_lsn;
    PERFORM pg_sleep(0.1);
  END LOOP;
END $$;
SELECT pg_last_wal_replay_lsn() >= '%(lsn)s'::pg_lsn, pg_last_wal_replay_lsn();
\\echo '## last'
SELECT o.id, o.reference, b.version FROM outbox o JOIN bookings b USING (reference) WHERE o.id = %(outbox)s;
"""


class Replication(Oracle):
    """`standby` streams from `primary`, of the system and timeline they had, through the slots there were, and
    within `within_s` seconds has what the primary wrote after the look began; the newest booking is read there.

    `swapped`: a repair may have made the standby the primary and the old primary its standby, or that and back:
    then the timeline is another one.
    """

    primary: str = "w2"
    standby: str = "w3"
    within_s: float = 10.0
    swapped: bool = False
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "replication"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    def look(self, lab: Lookout) -> Seen:
        source, follower = self.primary, self.standby
        seen = self._ask(lab, source, _OF_PRIMARY)
        if self.swapped and seen["error"]:
            source, follower = follower, source
            other = self._ask(lab, source, _OF_PRIMARY)
            if other["error"]:
                return {"primary": self.primary, self.primary: seen, self.standby: other}
            seen = other
        if seen["error"]:
            return {"primary": source, source: seen}
        mark, last = seen["mark"], seen["last"]
        known = {
            "lsn": mark[0],
            "outbox": last[0].split("\t")[0] if last else "0",
            "turns": int(self.within_s * 10),
        }
        return {"primary": source, source: seen, follower: self._ask(lab, follower, _OF_STANDBY % known)}

    def _ask(self, lab: Lookout, node: str, sql: str) -> Seen:
        said = ask(lab, node, sql, patience_s=int(self.within_s) + 30)
        return {"error": said.error, **sections(said.text)}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        source = after["primary"]
        follower = self.standby if source == self.primary else self.primary
        bad = [
            f"{node}: {after[node]['error']}" for node in (source, follower) if after.get(node, {}).get("error")
        ]
        if bad or follower not in after:
            return self.found(Outcome.FAIL, *bad)
        up, down = after[source], after[follower]
        was = before[before["primary"]]
        if [up["id"][0].split("\t")[1], down["id"][0].split("\t")[1]] != ["f", "t"]:
            return self.found(Outcome.FAIL, f"{source} is no primary, or {follower} no standby")
        if not up["id"][0].split("\t")[0] == down["id"][0].split("\t")[0] == was["id"][0].split("\t")[0]:
            bad.append("a server was made anew: its system identifier is another one")
        if not self.swapped and up["mark"][1] != was["mark"][1]:
            bad.append(f"{source} is on timeline {int(up['mark'][1], 16)}, was on {int(was['mark'][1], 16)}")
        senders = [line.split("\t") for line in up.get("senders", ())]
        streaming = [s for s in senders if s[2] == "streaming"]
        if not streaming:
            bad.append(f"{source} streams to nobody" + (f": {senders[0][2]}" if senders else ""))
        receiver = [line.split("\t") for line in down.get("receiver", ())]
        if not receiver or receiver[0][0] != "streaming":
            bad.append(f"{follower} receives nothing" + (f": {receiver[0][0]}" if receiver else ""))
        if down["reached"][0].split("\t")[0] != "t":
            at = down["reached"][0].split("\t")[1]
            bad.append(f"{follower} had not replayed {up['mark'][0]} after {self.within_s:g} s: it is at {at}")
        elif up["last"] and not down["last"]:
            bad.append(f"{follower} has not the newest booking, {up['last'][0].split()[1]}")
        bad += self._slots(before, after)
        lag = max((float(s[3]) for s in streaming), default=-1.0)
        return self.found(Outcome.FAIL if bad else Outcome.PASS, *bad, lag_bytes=int(lag), primary=source)

    def _slots(self, before: Seen, after: Seen) -> list[str]:
        """The slots of the gate are there, and as they were; others hold back WAL for nobody."""
        if before["primary"] != after["primary"]:
            return []
        was, now = (
            {line.split("\t")[0]: line for line in seen[seen["primary"]].get("slots", ())}
            for seen in (before, after)
        )
        return [
            f"slot {name} is {_text(now.get(name))}, was {_text(was.get(name))}"
            for name in sorted({*was, *now})
            if was.get(name) != now.get(name)
        ]


def _text(line: str | None) -> str:
    return re.sub(r"\t", " ", line) if line else "not there"
