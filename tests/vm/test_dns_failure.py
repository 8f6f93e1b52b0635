"""dns_failure on a real kernel: the C library's resolver and direct queries, beside names that are left alone.

The nodes have neither systemd-resolved nor nscd. A name server of the test's own at 127.0.0.53 stands for the stub
of the first, and a program of the test's for the one that empties its cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.injection import InjectionView
from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.dns_server import FOUR, SIX
from tests.vm.net_bench import NetBench, left_as_it_was, net_bench, v4, v6

pytestmark = pytest.mark.vm

STUB = "127.0.0.53"
SERVERS = (v4(1), v6(1), STUB)
ASKER, SERVER = (Path(__file__).with_name(name) for name in ("dns_asker.py", "dns_server.py"))
CHOSEN, BELOW, OTHER = "db.example.com", "a.db.example.com", "db.example.org"
EVERYWHERE = [(server, protocol) for server in SERVERS for protocol in ("udp", "tcp")]
FLUSHED = "/tmp/flushed"
RESOLVED, RESOLVECTL, ASKING = "/run/systemd/resolve", "/usr/bin/resolvectl", "/run/systemd/system/asker.service"
STOPPED = f"systemctl stop stub asker; rm -rf {RESOLVED} {RESOLVECTL} {ASKING} {FLUSHED}"
TIMED = """python3 - <<'EOF'
import socket, time
began = time.monotonic()
found = {{one[4][0] for one in socket.getaddrinfo("{name}", 80)}}
print(time.monotonic() - began, *sorted(found))
EOF"""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[NetBench]:
    with net_bench(lab, "w1", "w2", 2) as one:
        for node in (one.node, one.far):
            for source in (ASKER, SERVER):
                one.sh(f"cat > /tmp/{source.name} <<'PUT_IT'\n{source.read_text()}\nPUT_IT", node)
        start = "systemd-run --quiet --unit=stub python3 /tmp/dns_server.py"
        one.sh(f"{start} {v4(1)} {v6(1)}", one.far)
        one.sh(f"{start} {STUB}; echo 'nameserver {v4(1)}' > /etc/resolv.conf")
        until("all servers answer", lambda: all(FOUR in said for said in asked(one, OTHER)), 180)
        yield one
        one.sh(STOPPED, check=False)


@pytest.fixture(autouse=True)
def nothing_stays(bench: NetBench) -> Iterator[None]:
    with left_as_it_was(bench):
        yield


def asked(bench: NetBench, *names: str, where: list[tuple[str, str]] = EVERYWHERE, within: str = "") -> list[str]:
    """What each server answers about each name, as tests/vm/dns_asker.py prints it."""
    words = [f"{server} {protocol} {name}" for name in names for server, protocol in where]
    return bench.sh(f"{within} python3 /tmp/{ASKER.name} {' '.join(words)}").splitlines()


def looked_up(bench: NetBench, name: str) -> set[str]:
    """Addresses as any program gets them by getaddrinfo."""
    lines = bench.sh(f"getent ahosts {name}", check=False, timeout=60).splitlines()
    return {line.split()[0] for line in lines}


def resolves(bench: NetBench, name: str) -> bool:
    return looked_up(bench, name) == {FOUR, SIX}


def counters(bench: NetBench, view: InjectionView) -> dict[str, int]:
    return dict(bench.evidence(view).counters)


def test_no_such_name_whoever_is_asked(bench: NetBench) -> None:
    view = bench.inject("dns_failure", names=[CHOSEN])
    assert asked(bench, CHOSEN, BELOW, OTHER) == ["3"] * 6 + [f"0 {FOUR}"] * 12
    assert looked_up(bench, CHOSEN) == set() and resolves(bench, OTHER) and resolves(bench, BELOW)
    found = bench.evidence(view)
    assert found.hits >= 8 and found.counters["answers_seen"] > found.hits
    assert found.counters["answers"] >= found.counters["answers_seen"], "the kernel counts packets"
    assert resolves(bench, CHOSEN) is False
    bench.recover(view)
    assert asked(bench, CHOSEN) == [f"0 {FOUR}"] * 6 and resolves(bench, CHOSEN)


def test_wrong_addresses_and_a_server_that_fails_side_by_side(bench: NetBench) -> None:
    wrong = bench.inject("dns_failure", names=[f"*.{CHOSEN}"], answer="wrong", wrong_v6="fd77::66")
    failed = bench.inject("dns_failure", names=["*.example.org"], answer="servfail")
    assert asked(bench, CHOSEN, BELOW, OTHER, "ok.example.net") == (
        ["0 192.0.2.1"] * 12 + ["2"] * 6 + [f"0 {FOUR}"] * 6
    )
    assert looked_up(bench, BELOW) == {"192.0.2.1", "fd77::66"} and looked_up(bench, OTHER) == set()
    bench.recover(wrong)
    assert asked(bench, BELOW, OTHER) == [f"0 {FOUR}"] * 6 + ["2"] * 6, "the other one stands"
    bench.recover(failed)
    assert resolves(bench, OTHER)


def test_one_of_two_answers_is_lost_and_it_takes_five_seconds(bench: NetBench) -> None:
    """Case 37: the C library asks for IPv4 and IPv6 addresses at once, waits for both, and then asks again."""

    def timed(name: str) -> tuple[float, set[str]]:
        seconds, *addresses = bench.sh(TIMED.format(name=name)).split()
        return float(seconds), set(addresses)

    view = bench.inject("dns_failure", names=[CHOSEN], answer="timeout", records="aaaa", every=2)
    seconds, addresses = timed(CHOSEN)
    assert 4.9 < seconds < 7 and addresses == {FOUR, SIX}, seconds
    seconds, _ = timed(OTHER)
    assert seconds < 2, "another name at once"
    direct = [(v4(1), "udp")]
    assert asked(bench, *[f"{CHOSEN}/AAAA"] * 2, CHOSEN, where=direct) == ["timeout", f"0 {SIX}", f"0 {FOUR}"]
    assert bench.evidence(view).hits == 2
    bench.recover(view)
    assert timed(CHOSEN)[0] < 2


def test_one_unit_also_after_its_restart_and_caches_forget(bench: NetBench) -> None:
    """A unit that asks again and again; a program in the place of resolvectl notes that it is told to forget."""
    bench.sh(f"rm -f {FLUSHED}; mkdir -p {RESOLVED}; touch {RESOLVED}/stub-resolv.conf; "
             f"printf '#!/bin/sh\\necho $1 >> {FLUSHED}\\n' > {RESOLVECTL}; chmod 755 {RESOLVECTL}")  # fmt: skip
    questions = f"{v4(1)} udp {CHOSEN} {STUB} tcp {CHOSEN}"
    script = (
        f"while :; do python3 /tmp/{ASKER.name} {questions} > /tmp/asked.new; mv /tmp/asked.new /tmp/asked; done"
    )
    bench.sh(f"printf '[Service]\\nExecStart=/bin/sh -c \"{script}\"\\n' > {ASKING}; "
             "systemctl daemon-reload; systemctl start asker")  # fmt: skip

    def unit_says(wanted: str) -> bool:
        return bench.sh("cat /tmp/asked", check=False).split("\n") == [wanted, wanted]

    until("the unit resolves", lambda: unit_says(f"0 {FOUR}"))
    view = bench.inject("dns_failure", names=["*"], unit="asker")
    assert bench.sh(f"cat {FLUSHED}") == "flush-caches"
    until("the unit does not", lambda: unit_says("3"))
    assert asked(bench, CHOSEN) == [f"0 {FOUR}"] * 6 and resolves(bench, CHOSEN), "everybody else does"
    bench.sh("systemctl restart asker; rm -f /tmp/asked")
    until("nor after its restart", lambda: unit_says("3"))
    assert counters(bench, view)["of_others"] >= 6
    bench.recover(view)
    until("it does again", lambda: unit_says(f"0 {FOUR}"))
    assert bench.sh(f"cat {FLUSHED}").split() == ["flush-caches"] * 2
    bench.sh(
        "systemctl stop asker; rm -rf /usr/bin/resolvectl /run/systemd/system/asker.service /run/systemd/resolve"
    )


@pytest.mark.thorough
def test_names_resolve_when_the_process_or_the_agent_ends(bench: NetBench, lab: LabUnderTest) -> None:
    view = bench.inject("dns_failure", names=["*"])
    assert asked(bench, CHOSEN) == ["3"] * 6
    bench.sh(f"for pid in $(cat /sys/fs/cgroup/groundfault-{view.id}/cgroup.procs); do kill -9 $pid; done")
    until("all answers pass", lambda: asked(bench, CHOSEN) == [f"0 {FOUR}"] * 6)
    found = bench.evidence(view)
    assert not found.armed and "has ended" in found.notes[0]
    bench.recover(view)
    view = bench.inject("dns_failure", names=[CHOSEN], answer="timeout")
    assert asked(bench, CHOSEN, where=[(v4(1), "udp")]) == ["timeout"]
    bench.sh("systemctl kill --signal=KILL groundfault-agent")
    until("names resolve at once", lambda: resolves(bench, CHOSEN), 20)
    lab.ready(bench.node)
    bench.agent.probe()
    (ended,) = bench.agent.list(ids=(view.id,), ended=True).injections
    assert (ended.state, ended.reason) == ("recovered", "restart")
