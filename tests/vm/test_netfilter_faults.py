"""partition, tcp_reset, half_open, conntrack_full and ports_exhausted on a real kernel, beside neighbours.

The far node has two addresses of each family: number 1 is spoilt, number 0 has to be untouched.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh
from tests.user import until
from tests.vm.net_bench import PORT, NetBench, left_as_it_was, net_bench, v4, v6

pytestmark = pytest.mark.vm

ECHO, OTHER = 7200, 7201
SPOILT = [v4(1), v6(1)]
SESSIONS = Path(__file__).with_name("sessions.py")
REMOTE = "/tmp/sessions.py"
CONNECT = """python3 - <<'EOF'
import errno, socket, sys
for word in {ends!r}:
    host, port = word.rsplit("/", 1)
    try:
        socket.create_connection((host, int(port)), 3).close()
        print("ok")
    except OSError as error:
        print(errno.errorcode.get(error.errno or errno.ETIMEDOUT))
EOF"""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[NetBench]:
    with net_bench(lab, "w1", "w2", 2) as one:
        for node in (one.node, one.far):
            put(one, SESSIONS, REMOTE, node)
        one.sh(f"systemd-run --quiet --unit=sessions sh -c 'exec python3 {REMOTE} serve {ECHO} {OTHER}'", one.far)
        until("the far node echoes", lambda: connects(one, f"{v4(0)}/{OTHER}") == ["ok"])
        yield one


@contextmanager
def with_and_without(bench: NetBench, begin: str = "true", end: str = "true") -> Iterator[None]:
    """A test between two scripts: what it does must leave the node as it was after the first."""
    bench.sh(begin)
    try:
        with left_as_it_was(bench):
            yield
    finally:
        bench.sh(f"systemctl stop 'held-*'; rm -f /tmp/held-*; {end}", check=False)


@pytest.fixture
def nothing_stays(bench: NetBench) -> Iterator[None]:
    with with_and_without(bench):
        yield


def put(bench: NetBench, source: Path, place: str, node: Any = None) -> None:
    """A file on a node."""
    bench.sh(f"cat > {place} <<'PUT_IT'\n{source.read_text()}\nPUT_IT", node)


def connects(bench: NetBench, *ends: str, within: str = "") -> list[str]:
    """What becomes of new connections to each ADDRESS/PORT: "ok" or an errno; `within`: words to run it with."""
    return bench.sh(f"{within} {CONNECT.format(ends=ends)}").splitlines()


class Held:
    """Connections in a unit of their own on the node."""

    def __init__(self, bench: NetBench, name: str, within: str = "", **ends: str) -> None:
        self.bench, self.unit = bench, f"held-{name}"
        self._in, self._out = f"/tmp/{self.unit}.in", f"/tmp/{self.unit}.out"
        words = " ".join(f"{key}={end}" for key, end in ends.items())
        bench.sh(f"mkfifo {self._in}; systemd-run --quiet --unit={self.unit} sh -c "
                 f"'exec {within} python3 {REMOTE} hold {self._in} {words} >{self._out} 2>&1'")  # fmt: skip
        until("the connections are there", lambda: "up" in self.bench.sh(f"cat {self._out}", check=False), 180)

    def say(self) -> dict[str, str]:
        """What becomes of a word on each of them."""
        script = (f"n=$(wc -l <{self._out}); echo >{self._in}; for i in $(seq 200); do "
                  f"[ $(wc -l <{self._out}) -gt $n ] && break; sleep .1; done; tail -n1 {self._out}")  # fmt: skip
        found: dict[str, str] = json.loads(self.bench.sh(script))
        return found


def pinged(bench: NetBench, *words: str) -> tuple[int, str]:
    """How many of two pings came back, and what ping printed."""
    said = bench.sh(f"ping -n -c 2 -i 0.3 -W 2 {' '.join(words)} 2>&1", check=False)
    return int(said.partition(" received")[0].rpartition(" ")[2]), said


def counters(bench: NetBench, view: InjectionView) -> dict[str, int]:
    return dict(bench.evidence(view).counters)


def resets_seen(bench: NetBench) -> int:
    """How many connections ended by a reset on the far node."""
    return int(bench.sh("journalctl -u sessions -o cat | grep -c ^ECONNRESET", bench.far, check=False))


THEIR_TABLE = """nft -f - <<'EOF'
table inet theirs {
 chain out {
  type filter hook output priority -500
  ct state new counter
 }
}
EOF"""
NO_TABLE = "nft delete table inet theirs"


@pytest.fixture
def their_table(bench: NetBench) -> Iterator[None]:
    """Somebody else's rules, which track connections; they stay as they are."""
    with with_and_without(bench, THEIR_TABLE, NO_TABLE):
        yield


@pytest.mark.usefixtures("their_table")
def test_a_partition_hangs_old_and_new_connections_and_heals(bench: NetBench) -> None:
    bench.sh(
        "nft add table inet theirs; nft 'add chain inet theirs out { type filter hook output priority -500; }'"
    )
    held = Held(bench, "p", four=f"{v4(1)}/{ECHO}", six=f"{v6(1)}/{ECHO}", near=f"{v4(0)}/{ECHO}")
    view = bench.inject("partition", peers=SPOILT)
    assert held.say() == {"four": "ETIMEDOUT", "six": "ETIMEDOUT", "near": "ok"}
    ends = (f"{v4(1)}/{ECHO}", f"{v6(1)}/{ECHO}", f"{v4(0)}/{ECHO}", f"{v6(0)}/{ECHO}", f"{v4(1)}/22")
    assert connects(bench, *ends) == ["ETIMEDOUT", "ETIMEDOUT", "ok", "ok", "ok"], "SSH is never cut off"
    flows = bench.udp([f"{a}/{PORT}/64" for a in (v4(1), v6(1), v4(0), v6(0))], 20, 5.0)
    assert [len(one.lost) for one in flows] == [20, 20, 0, 0] and not any(one.refused for one in flows)
    for address in SPOILT:
        back, said = pinged(bench, address)
        assert back == 0 and "not permitted" not in said and "nreachable" not in said, said
    assert bench.sh(f"ping -n -c 1 -W 2 -I {v4(1)} 10.77.0.1", bench.far, check=False).count("0 received") == 1
    assert "1 received" in bench.sh(f"ping -n -c 1 -W 5 -I {v4(0)} 10.77.0.1", bench.far)
    found = bench.evidence(view)
    assert found.counters["out"] >= 40 and found.counters["in"] >= 1 and found.hits >= 41
    bench.recover(view)
    until("both go on where they were", lambda: set(held.say().values()) == {"ok"}, 90)


@pytest.mark.usefixtures("nothing_stays")
def test_one_way_and_told(bench: NetBench) -> None:
    echoes = "awk '/^Icmp:/ {n=$10} END {print n}' /proc/net/snmp"
    view = bench.inject("partition", peers=[v4(1)], direction="in")
    before = int(bench.sh(echoes, bench.far))
    assert pinged(bench, v4(1))[0] == 0
    assert int(bench.sh(echoes, bench.far)) == before + 2, "they arrive there"
    assert (counters(bench, view)["out"], counters(bench, view)["in"]) == (0, 2)
    bench.recover(view)
    held = Held(bench, "told", four=f"{v4(1)}/{ECHO}", near=f"{v4(0)}/{ECHO}")
    view = bench.inject("partition", peers=SPOILT, direction="out", action="reject")
    before = int(bench.sh(echoes, bench.far))
    back, said = pinged(bench, v4(1))
    assert back == 0 and int(bench.sh(echoes, bench.far)) == before, said
    assert held.say() == {"four": "ECONNRESET", "near": "ok"}
    assert connects(bench, f"{v4(1)}/{ECHO}", f"{v6(1)}/{ECHO}", f"{v4(0)}/{ECHO}") == [
        "ECONNREFUSED", "ECONNREFUSED", "ok",
    ]  # fmt: skip
    assert counters(bench, view)["in"] == 0
    bench.recover(view)


BOX = """ip netns add box
ip link add vbox type veth peer name eth0 netns box
ip link set vbox up
ip addr add 10.88.0.1/24 dev vbox
ip -n box addr add 10.88.0.2/24 dev eth0
ip -n box link set eth0 up
ip -n box route add default via 10.88.0.1
sysctl -qw net.ipv4.ip_forward=1
nft -f - <<'EOF'
table inet theirs {
 flowtable fast {
  hook ingress priority 0
  devices = { lan, vbox }
 }
 chain go {
  type filter hook forward priority 0
  ip protocol tcp flow add @fast
  counter
 }
}
EOF"""
NO_BOX = f"{NO_TABLE}; ip link del vbox; ip netns del box; sysctl -qw net.ipv4.ip_forward=0"


@pytest.fixture
def box(bench: NetBench) -> Iterator[None]:
    """A network namespace behind the node, whose flows the kernel forwards past the usual hooks."""
    bench.sh("ip route add 10.88.0.0/24 via 10.77.0.1", bench.far)
    with with_and_without(bench, BOX, NO_BOX):
        yield
    bench.sh("ip route del 10.88.0.0/24", bench.far)


@pytest.mark.usefixtures("box")
def test_forwarded_and_offloaded_packets_are_cut_off_too(bench: NetBench) -> None:
    held = Held(bench, "box", "ip netns exec box", four=f"{v4(1)}/{ECHO}", near=f"{v4(0)}/{ECHO}")
    assert [held.say() for _ in range(3)][2] == {"four": "ok", "near": "ok"}
    assert "OFFLOAD" in bench.sh("cat /proc/net/nf_conntrack"), "the kernel has taken the short way"
    view = bench.inject("partition", peers=[v4(1)])
    assert held.say() == {"four": "ETIMEDOUT", "near": "ok"}
    found = connects(bench, f"{v4(1)}/{ECHO}", f"{v4(0)}/{ECHO}", within="ip netns exec box")
    assert found == ["ETIMEDOUT", "ok"]
    bench.recover(view)
    until("it goes on", lambda: held.say()["four"] == "ok", 90)


@pytest.mark.usefixtures("nothing_stays")
def test_connections_are_reset_at_both_ends_also_idle_ones(bench: NetBench) -> None:
    ends = {
        "four": f"{v4(1)}/{ECHO}",
        "six": f"{v6(1)}/{ECHO}",
        "port": f"{v4(1)}/{OTHER}",
        "near": f"{v4(0)}/{ECHO}",
    }
    held, before = Held(bench, "r", **ends), resets_seen(bench)
    view = bench.inject("tcp_reset", peers=SPOILT, ports=str(ECHO))
    until("the far ends have seen it", lambda: resets_seen(bench) == before + 2, 30)
    assert f":{ECHO}" not in bench.sh(f"ss -tnH dst {v4(1)} dport = {ECHO}; ss -tnH dst [{v6(1)}]"), "and ours"
    assert held.say() == {"four": "ECONNRESET", "six": "ECONNRESET", "port": "ok", "near": "ok"}
    assert connects(bench, f"{v4(1)}/{ECHO}") == ["ok"], "new ones work"
    assert counters(bench, view) == {"own_end": 2, "far_end": 2}
    bench.recover(view)
    view = bench.inject("tcp_reset", peers=SPOILT, ports=str(ECHO), new_connections=True)
    assert connects(bench, f"{v4(1)}/{ECHO}", f"{v6(1)}/{ECHO}", f"{v4(1)}/{OTHER}", f"{v4(0)}/{ECHO}") == [
        "ECONNREFUSED", "ECONNREFUSED", "ok", "ok",
    ]  # fmt: skip
    bench.recover(view)
    assert connects(bench, f"{v4(1)}/{ECHO}") == ["ok"]


@pytest.mark.usefixtures("nothing_stays")
def test_connections_of_one_unit_die_silently(bench: NetBench) -> None:
    ends = {"four": f"{v4(1)}/{ECHO}", "six": f"{v6(1)}/{ECHO}"}
    victim, other, before = Held(bench, "victim", **ends), Held(bench, "other", **ends), resets_seen(bench)
    view = bench.inject("half_open", unit=victim.unit, peers=SPOILT)
    assert "2 TCP connections" in view.target
    assert victim.say() == {"four": "ETIMEDOUT", "six": "ETIMEDOUT"} and set(other.say().values()) == {"ok"}
    assert connects(bench, f"{v4(1)}/{ECHO}", f"{v6(1)}/{ECHO}") == ["ok", "ok"], "new ones work"
    stuck = [line for line in bench.sh("ss -tnH state established").splitlines() if line.split()[1] != "0"]
    assert len(stuck) == 2, "what was sent is not acknowledged, and nobody was told"
    bench.sh(f"systemctl kill --signal=KILL {victim.unit}")
    assert resets_seen(bench) == before, "the far end does not learn that they are gone"
    assert bench.evidence(view).hits >= 2
    bench.recover(view)


TRACKED = "cat /proc/sys/net/netfilter/nf_conntrack_count"


@pytest.mark.usefixtures("their_table")
def test_the_tracking_table_is_really_full(bench: NetBench, lab: LabUnderTest) -> None:
    held = Held(bench, "ct", four=f"{v4(0)}/{ECHO}")
    most = int(bench.sh("cat /proc/sys/net/netfilter/nf_conntrack_max"))
    view = bench.inject("conntrack_full")
    assert most - 8 <= int(bench.sh(TRACKED)) <= most
    flows = bench.udp([f"{v4(0)}/{PORT}/64", f"{v6(0)}/{PORT}/64"], 5, 20.0)
    assert [len(one.lost) for one in flows] == [5, 5]
    assert connects(bench, f"{v4(0)}/{ECHO}", "127.0.0.1/9") == ["ETIMEDOUT", "ECONNREFUSED"]
    assert held.say() == {"four": "ok"}, "a connection that has an entry goes on"
    assert ssh(bench.node, "echo new").stdout == "new\n", "new connections of control need none"
    assert bench.sh("dmesg | grep -c 'nf_conntrack: table full.*dropping packet'") != "0"
    found = bench.evidence(view)
    assert found.armed and found.hits >= 10 and set(bench.seen(view).values()) == {True}
    killed(bench, lab, view)
    assert int(bench.sh(TRACKED)) < 100 and connects(bench, f"{v4(0)}/{ECHO}") == ["ok"]


def killed(bench: NetBench, lab: LabUnderTest, view: InjectionView) -> None:
    """Kill the agent; the next one recovers what this one has planted, and then tries what the kernel can do."""
    bench.sh("systemctl kill --signal=KILL groundfault-agent")
    lab.ready(bench.node)
    bench.agent.probe()
    (ended,) = bench.agent.list(ids=(view.id,), ended=True).injections
    assert (ended.state, ended.reason) == ("recovered", "restart")


RANGE = "net.ipv4.ip_local_port_range"


@pytest.fixture
def narrow_range(bench: NetBench) -> Iterator[None]:
    """Two thousand local ports: the usual 28,000 take an emulated node a while."""
    usual = bench.sh(f"sysctl -n {RANGE}")
    with with_and_without(bench, f"sysctl -qw {RANGE}='40000 41999'", f"sysctl -qw {RANGE}='{usual}'"):
        yield


@pytest.mark.usefixtures("narrow_range")
def test_no_port_is_left_towards_one_end_or_towards_all(bench: NetBench) -> None:
    ends = (f"{v4(1)}/{ECHO}", f"{v4(1)}/{OTHER}", f"{v4(0)}/{ECHO}", f"{v6(1)}/{ECHO}")
    view = bench.inject("ports_exhausted")
    until("nobody gets a port", lambda: connects(bench, *ends) == ["EADDRNOTAVAIL"] * 4, 120)
    assert ssh(bench.node, "echo new").stdout == "new\n" and bench.evidence(view).counters["held"] >= 1990
    bench.recover(view)
    held = Held(bench, "ports", four=f"{v4(1)}/{ECHO}")
    view = bench.inject("ports_exhausted", address=v4(1), port=ECHO)
    assert connects(bench, *ends) == ["EADDRNOTAVAIL", "ok", "ok", "ok"]
    taken = int(bench.sh(f"ss -tnH state established dst {v4(1)} dport = {ECHO} | wc -l"))
    assert 1980 < taken <= 2000 and bench.evidence(view).counters["held"] == taken - 1, "one is the victim's own"
    assert held.say() == {"four": "ok"}
    seen = bench.sh(f"ss -tnH sport = {ECHO} src {v4(1)} | wc -l", bench.far)
    assert int(seen) < 10, "no packet has left for the others"
    bench.recover(view)
    left = bench.sh(f"ss -tanH dst {v4(1)} dport = {ECHO} | wc -l")
    assert int(left) < 50, "not even TIME_WAIT, but for those of the victims and of the tests before"
    assert connects(bench, *ends) == ["ok"] * 4


DOWN = "/run/systemd/system/groundfault-agent.service.d"


@pytest.fixture
def no_restart(bench: NetBench, lab: LabUnderTest) -> Iterator[None]:
    """An agent that stays down when it is killed."""
    with with_and_without(bench):
        bench.sh(
            f"mkdir -p {DOWN}; printf '[Service]\\nRestart=no\\n' > {DOWN}/down.conf; systemctl daemon-reload"
        )
        yield
        bench.sh(f"rm -rf {DOWN}; systemctl daemon-reload; systemctl start groundfault-agent", timeout=300)
        lab.ready(bench.node)
        bench.agent.probe()


@pytest.mark.usefixtures("no_restart")
def test_the_kernel_ends_a_partition_when_the_agent_is_killed_and_kept_down(
    bench: NetBench, lab: LabUnderTest
) -> None:
    name, lease_s = f"kept-down-{uuid.uuid4().hex[:8]}", 40.0
    bench.agent.apply(name, "partition", {"peers": [v4(1)]}, lease_s)
    began = time.monotonic()
    bench.sh("systemctl kill --signal=KILL groundfault-agent")
    until("it is down", lambda: bench.sh("systemctl is-active groundfault-agent", check=False) == "failed")
    assert pinged(bench, v4(1))[0] == 0, "the partition stands"
    until("the kernel ends it", lambda: pinged(bench, v4(1))[0] > 0, 120)
    assert lease_s - 10 < time.monotonic() - began < lease_s + 20
    assert f"groundfault-{name}" in bench.sh("nft list tables"), "and nobody else did"
    bench.sh("systemctl start groundfault-agent", timeout=300)
    lab.ready(bench.node)
    assert "groundfault" not in bench.sh("nft list tables")
    (ended,) = bench.agent.list(ids=(name,), ended=True).injections
    assert (ended.state, ended.reason) == ("recovered", "restart")
