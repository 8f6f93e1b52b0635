"""What a user does with faults of system calls, on nodes with a real database, real containers, two processors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from labctl.lab.model import Node
from tests.lab import LabUnderTest, ssh, ssh_argv
from tests.user import labctl, labctl_json, until
from tests.vm import calls

pytestmark = pytest.mark.vm

LAB = "calls"
DATA = "/srv/data/pg"
PORT = "5433"
GROUP = "/sys/fs/cgroup/system.slice/system-postgresql.slice/postgresql@17-lab.service"
SETUP = f"""
set -e
pg_createcluster 17 lab -d {DATA} -p {PORT} -- --data-checksums > /dev/null
echo 'shared_buffers = 256kB' >> /etc/postgresql/17/lab/postgresql.conf
echo 'autovacuum = off' >> /etc/postgresql/17/lab/postgresql.conf
systemctl daemon-reload
systemctl start postgresql@17-lab
su postgres -c "psql -q -p {PORT} -c 'CREATE TABLE t AS SELECT g, repeat(md5(g::text), 8) x
 FROM generate_series(1, 20000) g' -c CHECKPOINT"
"""
COUNT = f"su postgres -c \"psql -qAt -p {PORT} -c 'SELECT count(x) FROM t'\""


@pytest.fixture
def w2(two_cpus: LabUnderTest) -> Iterator[Node]:
    yield two_cpus.node("w2")
    labctl("recover", "--all", lab=LAB)
    for name in ("w1", "w2"):
        found = labctl_json("node", "residue", name, lab=LAB)["entries"]
        assert [one for one in found if not one["foreign"]] == []


def _only() -> dict[str, Any]:
    (one,) = labctl_json("injections", lab=LAB)["injections"]
    found: dict[str, Any] = one
    return found


def _counters() -> dict[str, int]:
    found: dict[str, int] = _only()["evidence"]["counters"]
    return found


def test_one_read_in_three_of_a_database(w2: Node) -> None:
    """The command of the README, on PostgreSQL 17: exact, through its restart, sockets untouched, told live."""
    ssh(w2, SETUP, timeout=300)
    assert ssh(w2, COUNT).stdout.strip() == "20000"
    command = ("file_error", "--node", "w2", "--unit", "postgresql", "--path", "/srv/data", "--operation", "read",
               "--errno", "EIO", "--ratio", "1/3")  # fmt: skip
    said = labctl("inject", *command, lab=LAB).stdout
    assert "postgresql@17-lab.service" in said, "on Debian that unit stands for the clusters"
    # An independent witness: strace of all its processes, with the names of files.
    trace = (
        "timeout 60 strace -f -y -e trace=read,pread64,readv,preadv,recvfrom,sendto -o /run/trace "
        f"$(sed 's/^/-p /' {GROUP}/cgroup.procs)"
    )
    before = _counters()
    with subprocess.Popen(
        ssh_argv(w2, trace), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as strace:
        traced = f"grep -q 'TracerPid:.[1-9]' /proc/$(head -1 {DATA}/postmaster.pid)/status"
        until("strace is attached", lambda: ssh(w2, traced, check=False).returncode == 0)
        answers = [ssh(w2, COUNT, check=False) for _ in range(4)]
        ssh(w2, "pkill -x strace")
        strace.wait(60)
    after = _counters()
    failed = [a for a in answers if a.returncode]
    assert [a for a in failed if "could not read blocks" in a.stderr], [a.stderr for a in answers]
    told = ssh(w2, "cat /run/trace").stdout.splitlines()
    begun = [x for x in told if f"<{DATA}/" in x]  # one line a call, also where others come in between
    assert len(begun) == after["matched"] - before["matched"] > 20
    assert len([x for x in told if "= -1 EIO" in x]) == after["injected"] - before["injected"]
    assert after["injected"] == after["matched"] // 3, "exactly one in three"
    sockets = [x for x in told if re.search(r"(recvfrom|sendto)\(\d+<", x)]
    assert sockets and not [x for x in sockets if "EIO" in x]

    watched = _watch(_only()["id"])
    assert re.search(r"postgres\[\d+\] +read .* = EIO", watched), watched

    ssh(w2, "systemctl restart postgresql", check=False)  # it may not even start: a third of its reads fail
    until("its new processes were hit", lambda: _counters()["injected"] > after["injected"])
    now = _counters()
    assert now["injected"] == now["matched"] // 3
    labctl("recover", "--all", lab=LAB)
    ssh(w2, "systemctl restart postgresql")
    until("it serves", lambda: ssh(w2, COUNT, check=False).stdout.strip() == "20000")


def _watch(injection: str) -> str:
    """What `labctl watch` prints before it is ended after a few seconds."""
    argv = (sys.executable, "-m", "labctl", "--lab", LAB, "watch", injection, "--interval", "0.5")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watching:
        try:
            return watching.communicate(timeout=8)[0]
        except subprocess.TimeoutExpired:
            watching.terminate()  # an interrupt is ignored by what a script starts in the background
            return watching.communicate(timeout=20)[0]


def test_a_ratio_is_exact_on_two_processors(w2: Node, tmp_path: Path) -> None:
    with calls.build(tmp_path).open("rb") as program:
        subprocess.run(ssh_argv(w2, "cat > /run/calls && chmod 755 /run/calls"), stdin=program, check=True)
    ssh(w2, "mkdir -p /sys/fs/cgroup/many; mount -o remount,exec /run")
    ssh(w2, "mkdir -p /srv/data/many")
    where = ("--node", "w2", "--cgroup", "/many", "--path", "/srv/data/many")
    labctl("inject", "file_error", *where, "--ratio", "3/7", lab=LAB)

    def read(number: int) -> list[str]:
        where = f"--dir /srv/data/many/{number} --cgroup /sys/fs/cgroup/many"
        ssh(w2, f"mkdir -p /srv/data/many/{number}")
        return ssh(w2, f"/run/calls run pread64 --count 700 {where} < /dev/null").stdout.splitlines()

    with ThreadPoolExecutor(4) as pool:
        answers = [answer for some in pool.map(read, range(4)) for answer in some if answer != "ready"]
    assert len(answers) == 2800 and answers.count("EIO") == 1200
    counters = _counters()
    assert (counters["matched"], counters["injected"]) == (2800, 1200)


CONTAINER = """
set -e
cd /run; mkdir -p img/bin; cp /bin/busybox img/bin/; for c in sh cat sleep; do ln -sf busybox img/bin/$c; done
tar c -C img . | podman import -q - box:1 > /dev/null
echo hello > /srv/data/c
podman run -d --name box --network none -v /srv/data:/data box:1 /bin/sh -c \
 'while :; do /bin/cat /data/c > /data/out.new 2>&1; /bin/busybox mv /data/out.new /data/out; /bin/sleep 0.3; done'
"""


def test_a_container_by_name_and_nobody_else(two_cpus: LabUnderTest, w2: Node) -> None:
    """By the path on the host of a volume that has another one inside."""
    w1 = two_cpus.node("w1")
    identity = ssh(w1, CONTAINER, timeout=300).stdout.strip().splitlines()[-1]
    until("it reads", lambda: "hello" in ssh(w1, "cat /srv/data/out", check=False).stdout)
    for name in ("box", identity[:12]):
        labctl("inject", "file_error", "--node", "w1", "--container", name, "--path", "/srv/data/c", lab=LAB)
        until("it fails", lambda: "Input/output error" in ssh(w1, "cat /srv/data/out", check=False).stdout)
        assert ssh(w1, "cat /srv/data/c").stdout.strip() == "hello"
        labctl("recover", "--all", lab=LAB)
        until("it reads", lambda: "hello" in ssh(w1, "cat /srv/data/out", check=False).stdout)
    ssh(w1, "podman rm -f -t 0 box > /dev/null")
