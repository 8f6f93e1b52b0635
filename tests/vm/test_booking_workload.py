"""The booking service on real nodes: it serves, replicates, confirms once, is warm after a reset; rights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from labctl.run.ledger import against, replay
from tests.booking_lab import BookingLab

LOAD_S = 25.0
RESET_S = 120.0
"""Far more than a reset takes on a machine that does nothing else."""


def eventually(holds: Callable[[], bool], what: str, within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.5)


@pytest.fixture
def taken_back(booking_lab: BookingLab) -> Iterator[BookingLab]:
    yield booking_lab
    booking_lab.reset()


def test_it_serves_and_every_change_is_confirmed_once_and_replicated(booking_lab: BookingLab) -> None:
    with booking_lab.load(seed=3) as load:
        eventually(lambda: load.now_s() > LOAD_S, "the load", LOAD_S + 10)
    lines = load.lines()
    served = sum(line.answer in ("ok", "refused") for line in lines)
    assert len(lines) > 20 and served >= 0.98 * len(lines), [line for line in lines if line.answer != "ok"][:5]
    possible, wrong = replay(lines)
    assert wrong == ()
    rows = booking_lab.sql("w2", "SELECT reference, flight || '/' || version FROM bookings WHERE state = 'booked'")
    found = dict(row.split("|") for row in rows.splitlines())
    assert (
        against({k: v for k, v in possible.items() if k}, {k: v for k, v in found.items() if k in possible}) == ()
    )
    unsent = "SELECT count(*) FROM outbox WHERE sent IS NULL"
    eventually(lambda: booking_lab.sql("w2", unsent) == "0", "all confirmations sent")
    told = booking_lab.sql("w2", "SELECT 'confirmation:' || reference || ':' || version FROM outbox").splitlines()
    got = booking_lab.sh("w1", "valkey-cli --scan --pattern 'confirmation:*'").splitlines()
    assert told and sorted(told) == sorted(got)

    seats = "SELECT sum(seats - free), (SELECT count(*) FROM bookings WHERE state = 'booked') FROM flights"
    taken, booked = booking_lab.sql("w2", seats).split("|")
    assert taken == booked
    everything = "SELECT count(*), sum(version), count(*) FILTER (WHERE state = 'booked') FROM bookings"
    primary = booking_lab.sql("w2", everything)
    eventually(lambda: booking_lab.sql("w3", everything) == primary, "the standby has it all")
    assert booking_lab.sql("w2", "SELECT state, slot_name FROM pg_stat_replication, pg_replication_slots") == (
        "streaming|w3"
    )
    assert booking_lab.sql("w2", "SHOW data_checksums") == "on"


def test_a_reset_gives_a_warm_service_in_which_nothing_has_happened(booking_lab: BookingLab) -> None:
    code, opened = booking_lab.api("POST", "/sessions", body={"user": "ada"})
    assert code == 201
    flight = {"flight": 1, "passenger": "Ada"}
    assert booking_lab.api("PUT", "/bookings/b-before-reset", opened["token"], flight)[0] == 201
    began = time.monotonic()
    booking_lab.reset()
    assert booking_lab.api("GET", "/health")[0] == 200
    assert time.monotonic() - began < RESET_S
    token = booking_lab.api("POST", "/sessions", body={"user": "ada"})[1]["token"]
    assert booking_lab.api("GET", "/bookings/b-before-reset", token)[0] == 404
    assert booking_lab.api("PUT", "/bookings/b-after-reset", token, flight)[0] == 201
    for node, unit in (("w1", "nginx"), ("w1", "booking-api"), ("w3", "booking-api"), ("w2", "postgresql@17-main"),
                       ("w1", "etcd"), ("w2", "etcd"), ("w3", "etcd"), ("w1", "booking-worker")):  # fmt: skip
        asked = booking_lab.sh(node, f"systemctl show --value -p ActiveState -p NRestarts {unit}")
        assert asked.split() in (["active", "0"], ["0", "active"]), f"{node}: {unit}"
    streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
    eventually(lambda: booking_lab.sql("w2", streaming) == "1", "the standby streams again")
    sent = "SELECT count(*) FROM outbox WHERE reference = 'b-after-reset' AND sent IS NOT NULL"
    eventually(lambda: booking_lab.sql("w2", sent) == "1", "a worker leads and sends")


MAY = (
    ("w1", "sudo -n systemctl restart nginx"),
    ("w1", "sudo -n systemctl status --no-pager booking-api"),
    ("w1", "sudo -n journalctl -u booking-api -n 5 --no-pager"),
    ("w2", "sudo -n dmesg -T | tail -n 3"),
    ("w2", "sudo -n smartctl -i /dev/sda | grep -i qemu"),
    ("w2", "sudo -n -u postgres psql -XAtd booking -c 'SELECT count(*) FROM flights' | grep -x 320"),
    ("w2", "sudo -n cat /etc/postgresql/17/main/pg_hba.conf | grep replicator"),
    ("w2", "echo '# by hand' | sudo -n tee -a /etc/postgresql/17/main/conf.d/booking.conf > /dev/null"),
    ("w2", "sudo -n pg_ctlcluster 17 main reload"),
    ("w2", "sudo -n dumpe2fs -h /dev/mapper/data | grep -i 'filesystem state'"),
    ("w3", "sudo -n ss -ltnp 'sport = :8080' | grep gunicorn"),
    ("w3", "sudo -n sysctl -w net.ipv4.tcp_keepalive_time=7200"),
    ("w1", "valkey-cli ping | grep PONG"),
    ("w3", "ETCDCTL_API=3 etcdctl get booking/leader --print-value-only | grep ."),
    ("w1", "host db.booking | grep 10.77.0.2"),
)
MAY_NOT = (
    ("w2", "sudo -n bpftool prog"),
    ("w2", "sudo -n dmsetup table"),
    ("w2", "sudo -n systemctl stop groundfault-agent"),
    ("w2", "sudo -n systemctl stop 'ground*'"),
    ("w2", "sudo -n journalctl --namespace=groundfault -n 1"),
    ("w2", "journalctl --namespace=groundfault -n 1 | grep ."),
    ("w2", "sudo -n cat /var/lib/groundfault/journal /etc/shadow"),
    ("w2", "ls /opt/groundfault/lib"),
    ("w2", "ls /var/lib/groundfault"),
    ("w2", "ls /etc/groundfault/tls"),
    ("w2", "sudo -n tee /etc/sudoers.d/oncall < /dev/null"),
    ("w2", "sudo -n bash -c true"),
    ("w2", "sudo -n pkill -x node-agent"),
    ("w1", "cat /etc/booking/secret"),
)


def test_who_is_on_call_can_do_an_operators_work_and_cannot_touch_the_lab(taken_back: BookingLab) -> None:
    for node in ("w1", "w2", "w3"):
        may, may_not = ([line for where, line in them if where == node] for them in (MAY, MAY_NOT))
        assert taken_back.sh(node, "ls -A /home/oncall/.ssh") == "", "nobody can log in until a run brings a key"
        done = tried(taken_back, node, [*may, *may_not])
        assert [line for line, code in zip(may, done, strict=False) if code] == [], node
        assert [line for line, code in zip(may_not, done[len(may) :], strict=True) if not code] == [], node


def tried(lab: BookingLab, node: str, lines: list[str]) -> list[int]:
    """How each line ends in a shell of the on-call account."""
    program = f"""
import json, subprocess
shell = ["runuser", "-u", "oncall", "--", "bash", "-o", "pipefail", "-c"]
print(json.dumps([subprocess.run([*shell, x], capture_output=True, cwd="/tmp").returncode for x in {lines!r}]))
"""
    done: list[int] = json.loads(lab.sh(node, f"python3 - <<'EOF'{program}EOF"))
    return done
