"""Shapes of traffic on a real kernel: what stands beside them, what comes and goes, and what goes wrong.

What a single shape does to packets is measured in test_packet_faults.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabctlError
from tests.lab import LabUnderTest, thorough
from tests.user import until
from tests.vm.net_bench import PORT, NetBench, net_bench, v4
from tests.vm.net_meter import Flow

pytestmark = pytest.mark.vm

DRIVER = Path(__file__).with_name("shaping_driver.py")
PLACE = "/root/shaping_driver.py"
NOISE_MS = 25


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[NetBench]:
    with net_bench(lab, "w1", "w2", 5) as one:
        one.sh(f"cat > {PLACE} <<'END'\n{DRIVER.read_text()}\nEND")
        yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: NetBench) -> Iterator[None]:
    """As `left_as_it_was`, where the test itself changes what others have set up while a fault stands."""
    before = bench.state()
    bench.mine.clear()
    yield
    live = tuple(one.id for one in bench.agent.list().injections if one.id in bench.mine)
    if live:
        bench.agent.recover(live)
    assert [str(one) for one in bench.agent.residue() if not one.foreign] == []
    assert bench.state() == before


def driven(bench: NetBench, *words: str) -> Any:
    """What the driver found."""
    return json.loads(bench.sh(f"python3 {PLACE} {' '.join(words)}", timeout=1800))


FOREIGN = """
ip link add shp0 type veth peer name shp1 && ip link set shp0 up && ip link set shp1 up
tc qdisc replace dev lan root handle 5: htb default 20
tc class add dev lan parent 5: classid 5:10 htb rate 400mbit quantum 1514
tc class add dev lan parent 5: classid 5:20 htb rate 500mbit quantum 1514
tc qdisc add dev lan parent 5:10 handle 50: fq
tc filter add dev lan parent 5: protocol ip u32 match ip dst {v4} flowid 5:10
tc qdisc add dev lan clsact
tc filter add dev lan ingress protocol ip matchall action gact pass
tc filter add dev lan egress protocol ip u32 match ip dst {v4} flowid 1:1
nft add table netdev foreign
nft 'add chain netdev foreign watch {{ type filter hook egress device "lan" priority 0; }}'
nft add rule netdev foreign watch ip daddr {v4} counter
"""


@pytest.fixture
def foreign(bench: NetBench) -> Iterator[str]:
    """Somebody's own set-up at the interface: an HTB with filters, a clsact with filters, a netfilter chain."""
    bench.sh(FOREIGN.format(v4=v4(1)))
    yield bench.state()
    bench.sh("nft delete table netdev foreign; tc qdisc del dev lan clsact; "
             "tc qdisc del dev lan root; ip link del shp0")  # fmt: skip


@pytest.mark.parametrize("moves", [100, *thorough(200)])
def test_any_sequence(bench: NetBench, foreign: str, moves: int) -> None:
    """At each moment the kernel has what it should have, to the letter; afterwards all is as it was."""
    found = driven(bench, "random", "5", str(moves))
    assert found["wrong"] == [] and found["left"] == [], found
    assert found["planted"] > 0.4 * moves and found["most"] >= moves // 25 and found["lanes"] >= moves // 25, found
    assert found["refused"] and all("do not go together" in text for text in found["refused"]), found
    assert bench.state() == foreign


def _in_class(bench: NetBench, number: str) -> int:
    said = bench.sh(f"tc -s class show dev lan classid {number}")
    return int(re.findall(r"Sent \d+ bytes (\d+) pkt", said)[0])


def test_what_others_have_set_up_goes_on(bench: NetBench, foreign: str) -> None:
    """Shaped packets go through the class that his filter gives them; his chain and his ingress see them."""
    view = bench.inject("packet_delay", delay_ms=60, peers=[v4(1)])
    before = _in_class(bench, "5:10")
    late, usual = bench.udp([f"{v4(n)}/{PORT}/64" for n in (1, 0)], 200)
    assert not late.lost and 120 - 2 <= late.median_ms <= 120 + NOISE_MS and _untouched(usual), (late, usual)
    assert _in_class(bench, "5:10") - before == 200
    watched = bench.sh("nft list chain netdev foreign watch")
    assert int(re.findall(r"packets (\d+)", watched)[0]) >= 200
    came = bench.sh("tc -s filter show dev lan ingress")
    assert int(re.findall(r"Sent \d+ bytes (\d+) pkt", came)[0]) >= 400
    bench.recover(view)
    assert bench.state() == foreign


def test_what_does_not_go_together_is_refused_with_whose_it_is(bench: NetBench, foreign: str) -> None:
    bench.sh("tc filter add dev lan egress protocol ip pref 7 matchall action police rate 1mbit burst 10k drop")
    with pytest.raises(LabctlError, match="pref 7 matchall"):
        bench.agent.apply("net-refused", "packet_loss", {"direction": "out"}, 60)
    bench.recover(bench.inject("packet_loss", direction="in", peers=[v4(3)]))
    bench.sh(
        "tc filter del dev lan egress pref 7; nft 'add rule netdev foreign watch ip daddr 10.9.9.9 fwd to mgmt'"
    )
    with pytest.raises(LabctlError, match="chain watch of netfilter table netdev foreign"):
        bench.agent.apply("net-refused", "packet_loss", {"direction": "out"}, 60)
    assert bench.agent.list(ids=("net-refused",)).injections == ()


def _untouched(flow: Flow) -> bool:
    return flow.whole and flow.median_ms < NOISE_MS


def test_flows_of_others_lose_nothing_while_shapes_come_and_go(bench: NetBench) -> None:
    """0: of nobody. 1: in a lane that stays. 2: in lanes that come and go, and run empty when they go."""
    stays = bench.inject("packet_delay", delay_ms=40, peers=[v4(1)], direction="out")
    flows = [f"{v4(n)}/{PORT}/64" for n in range(3)]
    changes = 0
    with ThreadPoolExecutor(1) as pool:
        measured: Future[list[Flow]] = pool.submit(bench.udp, flows, 5000, 4.0, 2000)
        while not measured.done():
            late = bench.inject("packet_delay", delay_ms=200, peers=[v4(2)], direction="out", seed=changes)
            more = bench.inject("packet_duplicate", duplicate_percent=9, ports=str(PORT + 3), seed=changes)
            bench.recover(late)
            bench.recover(more)
            changes += 1
        nobody, other, mine = measured.result()
    told = f"{changes} times\n{nobody}\n{other}\n{mine}"
    assert changes >= 1 and nobody.whole and other.whole and 38 <= other.median_ms <= 40 + NOISE_MS, told
    assert not mine.lost and any(ms > 190 for ms in mine.times_ms) and any(ms < 100 for ms in mine.times_ms), told
    assert bench.evidence(stays).counters["matched"] == 5000
    bench.recover(stays)


def test_large_segments_are_harmed_packet_by_packet(bench: NetBench) -> None:
    """What TCP hands over as one piece of up to 64 KiB comes to netem as packets of the wire."""
    view = bench.inject("packet_loss", loss_percent=0.0001, peers=[v4(1)], direction="out", protocol="tcp")
    assert bench.tcp("put", 1_500_000, v4(1)).end == "done"
    lane = bench.sh("tc -s qdisc show | grep -A1 'qdisc netem' | tail -1")
    octets, packets = map(int, re.findall(r"Sent (\d+) bytes (\d+) pkt", lane)[0])
    assert octets >= 1_500_000 and octets / packets <= 1514, lane
    assert bench.evidence(view).counters["matched"] < packets, "the rules saw them whole"
    bench.recover(view)


CHANGES = {
    "renamed": ("ip link set shp0 name shp9", "ip link del shp9"),
    "deleted": ("ip link del shp0", "true"),
    "moved": ("ip netns add elsewhere; ip link set shp0 netns elsewhere", "ip netns del elsewhere"),
    "made anew": (
        "ip link del shp0; ip link add shp0 type veth peer name shp1; ip link set shp0 up",
        "ip link del shp0",
    ),
}


def test_an_interface_that_is_not_what_it_was(bench: NetBench) -> None:
    """Two shapes each time: the evidence says that they bite no more, and recovery ends clean, one by one."""
    for what, (change, clean) in CHANGES.items():
        bench.sh("ip link add shp0 type veth peer name shp1 && ip link set shp0 up && ip link set shp1 up")
        views = [bench.inject(fault, interface="shp0") for fault in ("packet_loss", "packet_delay")]
        bench.sh(change)
        assert not any(bench.evidence(view).armed for view in views), what
        for view in views:
            bench.recover(view)
        bench.sh(f"{clean}; until [ ! -e /sys/class/net/shp1 ]; do sleep 0.1; done", timeout=30)


@pytest.mark.thorough
def test_networkd_restarts_while_a_shape_stands(bench: NetBench) -> None:
    """It manages the interface itself, and comes back twice."""
    unit = "[Match]\\nName=lan\\n[Network]\\nAddress=10.77.0.1/24\\nKeepConfiguration=yes\\n"
    bench.sh(f"mkdir -p /run/systemd/network && printf '{unit}' > /run/systemd/network/10-lan.network; "
             "systemctl unmask -q systemd-networkd.service systemd-networkd.socket")  # fmt: skip
    view = bench.inject("packet_delay", delay_ms=60, peers=[v4(1)], direction="out")
    for _ in range(2):
        bench.sh("systemctl restart systemd-networkd && networkctl --no-pager reconfigure lan")
    late, usual = bench.udp([f"{v4(n)}/{PORT}/64" for n in (1, 0)], 50, 5)
    assert not late.lost and 58 <= late.median_ms <= 60 + NOISE_MS and _untouched(usual), (late, usual)
    assert bench.evidence(view).armed
    bench.recover(view)
    bench.sh("systemctl stop systemd-networkd.service systemd-networkd.socket; "
             "rm /run/systemd/network/10-lan.network; "
             "systemctl mask -q systemd-networkd.service systemd-networkd.socket")  # fmt: skip


@pytest.mark.thorough
def test_the_agent_is_killed_with_five_shapes_standing(bench: NetBench) -> None:
    for number in range(5):
        bench.inject("packet_delay", delay_ms=10, ports=f"{8000 + number}-8010", seed=number)
    assert "gf" in bench.sh("ip -br link")
    bench.sh("systemctl kill -s KILL groundfault-agent")
    bench.mine.clear()
    until("a new agent has cleared up", lambda: "gf" not in bench.sh("ip -br link"), 180)
    until("it answers", lambda: _answers(bench), 60)


def _answers(bench: NetBench) -> bool:
    try:
        return bench.agent.list().injections == ()
    except LabctlError:
        return False


@pytest.mark.thorough
def test_a_kernel_without_the_modules(bench: NetBench) -> None:
    """Each probe says which one is missing, and what would help."""
    assert set(driven(bench, "probes").values()) == {"available"}
    hide = "mv /lib/modules/$(uname -r)/kernel/{0} /root/ && rmmod {1}"
    back = "mv /root/{0} /lib/modules/$(uname -r)/kernel/{1}/"
    files = {name: bench.sh(f"modinfo -n {name}").partition("/kernel/")[2] for name in ("sch_netem", "ifb")}
    for module, probe in (("sch_netem", "net.netem"), ("ifb", "net.ifb")):
        folder, _, name = files[module].rpartition("/")
        bench.sh(hide.format(files[module], module))
        said = driven(bench, "probes")
        bench.sh(back.format(name, folder))
        assert f"has no {module.removeprefix('sch_')}" in said[probe] and f"load module {module}" in said[probe], (
            said
        )
        assert said["net.nft_fwd"] == "available" or module == "ifb"
