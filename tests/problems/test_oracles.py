"""All oracles on the real booking service: they pass while it is well, and each sees what it is there for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from labctl.oracles.booking import standard
from labctl.run.load import HttpLoad
from labctl.run.oracle import Oracle, Sight, Window, judge_all, look_all
from labctl.run.shells import Shells
from labctl.run.verdict import Finding, Outcome
from tests.booking_lab import BookingLab

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1500)]

ORACLES = standard()
LOOK_S = 60.0
"""A look of all oracles takes a quarter of that where the machine is not shared."""


@dataclass
class Scene:
    """What was seen of a healthy service under load, and the load, which goes on."""

    lab: BookingLab
    load: HttpLoad
    before: Sight
    window: Window

    def look(self, oracles: tuple[Oracle, ...] = ORACLES) -> tuple[Sight, Window]:
        """What is there now, and the window of what the load did since the gate, all answers in."""
        begin, looked = self.window.end_s, self.load.now_s()
        with closing(Shells(lambda: self.lab.lab.nodes)) as nodes:
            sight = look_all(oracles, nodes)
        end = self.load.now_s()
        until(self.load, end + 6)
        return sight, Window(begin_s=begin, looked_s=looked, end_s=end, lines=tuple(self.load.lines()))


def until(load: HttpLoad, moment_s: float) -> None:
    while load.now_s() < moment_s:
        time.sleep(0.2)


@pytest.fixture(scope="module")
def scene(booking_lab: BookingLab) -> Iterator[Scene]:
    with booking_lab.load(seed=61) as load, closing(Shells(lambda: booking_lab.lab.nodes)) as nodes:
        until(load, 35)
        looked = load.now_s()
        before = look_all(ORACLES, nodes)
        end = load.now_s()
        until(load, end + 6)
        window = Window(begin_s=5, looked_s=looked, end_s=end, lines=tuple(load.lines()))
        yield Scene(booking_lab, load, before, window)
    booking_lab.reset()


def told(findings: tuple[Finding, ...]) -> dict[str, str]:
    """What each oracle that did not pass says."""
    return {f.oracle: f"{f.outcome} {'; '.join(f.reasons)}" for f in findings if not f.passed}


def test_a_healthy_service_passes_at_the_gate_and_later(scene: Scene) -> None:
    assert scene.before.blind == {}
    assert told(judge_all(ORACLES, scene.before, scene.before, scene.window)) == {}
    assert scene.window.end_s - scene.window.looked < LOOK_S
    after, window = scene.look()
    assert after.blind == {}
    assert told(judge_all(ORACLES, scene.before, after, window)) == {}


CHANGES = {
    "w1": """
        echo '* * * * * root true' > /etc/cron.d/mine
        sysctl -q -w vm.swappiness=7
        nft add table inet mine
        systemctl stop prometheus-node-exporter.service
        useradd --no-create-home helper
        cp /usr/bin/true /usr/local/bin/psql && chmod u+s /usr/local/bin/psql
        chmod u+s /usr/bin/uptime
        setsid python3 -c 'import socket, time
s = socket.create_server(("0.0.0.0", 4444)); time.sleep(600)' < /dev/null > /dev/null 2>&1 &
        ip link set lan mtu 1400
        date -s '+40 seconds' > /dev/null
    """,
    "w2": """
        cd / && runuser -u postgres -- psql -Xq -v ON_ERROR_STOP=1 -d booking <<'END-OF-SQL'
DROP INDEX bookings_flight;
ALTER ROLE replicator CREATEDB;
UPDATE flights SET price_cents = 1 WHERE id = 5;
CREATE TEMP TABLE oldest AS SELECT reference FROM bookings WHERE state = 'booked' ORDER BY created LIMIT 1;
DELETE FROM outbox WHERE reference IN (TABLE oldest);
DELETE FROM bookings WHERE reference IN (TABLE oldest);
ALTER SYSTEM SET zero_damaged_pages = on;
SELECT pg_reload_conf();
END-OF-SQL
        echo 1 > "/sys/fs/ext4/$(basename "$(realpath /dev/mapper/data)")/trigger_fs_error"
    """,
    "w3": """
        file=$(cd / && runuser -u postgres -- psql -XAtq -d booking -c "SELECT pg_relation_filepath('flights')")
        systemctl stop postgresql@17-main.service
        printf X | dd of="/srv/data/postgresql/17/main/$file" bs=1 seek=5000 conv=notrunc status=none
        free=$(df --output=avail -B1 /srv/data | tail -n 1)
        fallocate -l $((free - 4096000)) /srv/data/full
    """,
}

SEEN = {
    "replication": ("w3: ",),
    "units": ("w3: postgresql@17-main.service is inactive", "w1: prometheus-node-exporter.service is inactive"),
    "ledger": ("1 lost", "1 flights whose seats do not add up"),
    "disks_w2": ("superblock: Filesystem state is clean with errors", "the file system has counted 1 errors",
                 "complaints of the kernel"),
    "pages": ("wrong checksum of page 0", "w3: a new session: "),
    "network": ("w1: lan has MTU 1400, had 1500",),
    "clocks": ("w1: its clock is ",),
    "resources": ("w3: disk_used /srv/data is ",),
    "scope": ("w1:account passwd helper", "w1:file /etc/cron.d/mine", "w1:file /usr/local/bin/psql",
              "w1:firewall inet mine", "w1:interface lan was up mtu 1500, is up mtu 1400",
              "w1:listener tcp 0.0.0.0:4444", "w1:program /usr/bin/uptime", "w1:sysctl vm.swappiness",
              "w1:unit prometheus-node-exporter.service", "w3:unit postgresql@17-main.service"),
    "database_scope": ("db:object public.bookings_flight", "db:role replicator", "db:rows flights but their seats",
                       "w2:setting zero_damaged_pages"),
}  # fmt: skip
"""Oracle: what it has to say after the changes."""


def test_each_sees_what_it_is_there_for(scene: Scene) -> None:
    for node, script in CHANGES.items():
        scene.lab.sh(node, f"set -e\n{script}")
    after, window = scene.look()
    assert after.blind == {}
    said = {f.oracle: f for f in judge_all(ORACLES, scene.before, after, window)}
    for name, reasons in SEEN.items():
        assert said[name].outcome is Outcome.FAIL, name
        whole = "; ".join(said[name].reasons)
        assert [reason for reason in reasons if reason not in whole] == [], whole


def test_after_a_reset_nothing_is_changed(scene: Scene) -> None:
    scene.lab.reset()
    scopes = tuple(o for o in ORACLES if o.aspect == "scope")
    after, window = scene.look(scopes)
    assert told(judge_all(scopes, scene.before, after, window)) == {}
