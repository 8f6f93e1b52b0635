"""Faults of packets on a real kernel: what becomes of numbered packets, by a meter that is not the agent's.

Faults stand beside one another, each on an address of the far node, so that one run of the meter shows all of
them; one address has none and must be untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from node_agent.fault import Evidence
from tests.lab import LabUnderTest
from tests.vm import net_meter
from tests.vm.net_bench import PORT, NetBench, left_as_it_was, net_bench, v4, v6
from tests.vm.net_meter import Flow

pytestmark = pytest.mark.vm

COUNT = 2500
NOISE_MS = 25
"""By how much the quickest packets of one flow differ from those of another of the same run, on a busy machine."""
STRAY = 200
"""Of so many packets a busy lab may lose one by itself."""
SLOW_MS = 50
"""What the quickest packets take at most where nothing is done to it. On a quiet machine it is less than 1 ms."""

MATRIX: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("packet_loss", {"loss_percent": 10}),
    ("packet_loss", {"loss_percent": 20, "burst_packets": 5}),
    ("packet_loss", {"loss_percent": 15, "correlation_percent": 40}),
    ("packet_delay", {"delay_ms": 150, "jitter_ms": 40, "distribution": "normal"}),
    ("packet_jitter", {"jitter_ms": 60}),
    ("packet_reorder", {"reorder_percent": 25, "delay_ms": 150}),
    ("packet_duplicate", {"duplicate_percent": 10}),
    ("packet_corrupt", {"corrupt_percent": 20}),
)
"""Number n, from 1, is planted on address n; address 0 is the neighbour's."""

UNSPOILT, CORRUPT = 0, 8


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[NetBench]:
    with net_bench(lab, "w1", "w2", len(MATRIX) + 1) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: NetBench) -> Iterator[None]:
    with left_as_it_was(bench):
        yield


def takes(ms: float, found: Flow, usual: Flow) -> bool:
    """Whether a flow takes so much longer than another of the same run."""
    return ms - NOISE_MS / 2 <= found.quick_ms - usual.quick_ms <= ms + NOISE_MS


def lost_share(flow: Flow, share: float, spread: float = 1.0) -> bool:
    return net_meter.share_fits(len(flow.lost), flow.sent, share, spread)


def few(flow: Flow) -> bool:
    """Losses of a machine that is too busy to feed the switch between the nodes: none, or some of thousands."""
    return len(flow.lost) <= flow.sent // STRAY


def untouched(flow: Flow) -> bool:
    return few(flow) and flow.well and flow.quick_ms < SLOW_MS


def order(flow: Flow, direction: str) -> tuple[int, ...]:
    return flow.order_there if direction == "out" else flow.order_here


def is_reordered(flow: Flow, direction: str) -> bool:
    """A quarter overtakes; of the others nearly each is overtaken by one of the 25 that follow in 150 ms."""
    found = order(flow, direction)
    right = net_meter.share_fits(net_meter.early(found), flow.sent, 0.25)
    return few(flow) and right and net_meter.late(found) > 0.65 * flow.sent


def is_copied(flow: Flow, direction: str) -> bool:
    there, here = flow.copies_there, flow.copies_here
    copies, none = (there, here) if direction == "out" else (here, there)
    return few(flow) and none == 0 and net_meter.share_fits(copies, flow.sent, 0.1)


def judgements(direction: str, usual: Flow) -> tuple[Callable[[Flow], bool], ...]:
    """What each fault of the matrix has to look like, in its order, beside a flow that has none."""
    uniform, normal = net_meter.uniform, net_meter.normal

    def spread(flow: Flow, expected: Callable[[float], float]) -> bool:
        times = [ms - usual.median_ms for ms in flow.times_ms]
        noise = net_meter.quantile(usual.times_ms, 0.75) - net_meter.quantile(usual.times_ms, 0.25)
        return (
            net_meter.spread_fits(times, expected, 12 + noise)
            and net_meter.late(order(flow, direction)) > flow.sent / 2
        )

    return (
        lambda f: lost_share(f, 0.10),
        lambda f: lost_share(f, 0.20, net_meter.burst_spread(0.2, 5)) and net_meter.bursts_fit(f.bursts, 5),
        lambda f: lost_share(f, 0.15, 1.4 / 0.6) and len(f.lost) / len(f.bursts) > 1.3,
        lambda f: few(f) and spread(f, normal(150, 40)),
        lambda f: few(f) and spread(f, uniform(60, 60)),
        lambda f: is_reordered(f, direction),
        lambda f: is_copied(f, direction),
        lambda f: lost_share(f, 0.20),
    )


@pytest.mark.parametrize(("direction", "address"), [("out", v4), ("in", v6)], ids=["out, IPv4", "in, IPv6"])
def test_each_fault_does_what_it_says(bench: NetBench, direction: str, address: Callable[[int], str]) -> None:
    views = [
        bench.inject(fault, **parameters, peers=[address(n)], direction=direction, seed=n)
        for n, (fault, parameters) in enumerate(MATRIX, 1)
    ]
    # Large, because nothing protects the source of an Ethernet frame, nor some fields of an IPv6 header.
    sizes = {CORRUPT: "600n" if address is v4 else "600"}
    flows = bench.udp([f"{address(n)}/{PORT}/{sizes.get(n, '64')}" for n in range(len(MATRIX) + 1)], COUNT, 6)
    told = "\n".join(map(str, flows))
    assert untouched(flows[UNSPOILT]), told
    for view, flow, is_right in zip(views, flows[1:], judgements(direction, flows[UNSPOILT]), strict=True):
        assert is_right(flow), f"{view.fault} {view.parameters}\n{told}"
        assert not is_right(flows[UNSPOILT]), f"{view.fault}: this judgement says yes to anything"
    if direction == "out":
        spoilt, lost = flows[CORRUPT].spoilt_there, len(flows[CORRUPT].lost)
        assert 0.85 * lost < spoilt <= lost, f"without a checksum most arrive with wrong data\n{told}"
    other = v6 if address is v4 else v4
    for flow in bench.udp([f"{other(n)}/{PORT}/64" for n in (1, 4)], 100):
        assert untouched(flow), f"the other family: {flow}"
    for found, view, flow in zip(bench.evidence_of(*views), views, flows[1:], strict=True):
        check_evidence(found, view.fault, flow)
    bench.recover(*views)
    flows = bench.udp([f"{address(n)}/{PORT}/64" for n in range(len(MATRIX) + 1)], 100)
    assert all(untouched(flow) for flow in flows), "\n".join(map(str, flows))


def check_evidence(found: Evidence, fault: str, flow: Flow) -> None:
    """Counters of the kernel's against those of the meter: equal, but for what the fault never saw."""
    told, stray = f"{fault}: {found}\n{flow}", flow.sent // STRAY
    # A packet with a wrong port is answered by ICMP, and that goes through the lane as well.
    assert flow.sent - stray <= found.counters["matched"] <= flow.sent + stray, told
    if fault == "packet_loss":
        assert len(flow.lost) - stray <= found.hits <= len(flow.lost), told
    if fault == "packet_duplicate":
        copies = flow.copies_there + flow.copies_here
        assert 0.7 * copies < found.hits < 1.4 * copies, told


def test_two_faults_on_the_same_packets(bench: NetBench) -> None:
    """Ports 7000 to 7003: none, late, late and lost, lost."""
    ports = [f"{v4(1)}/{PORT + n}/64" for n in range(4)]
    delay = bench.inject("packet_delay", delay_ms=80, ports=f"{PORT + 1}-{PORT + 2}", direction="out")
    loss = bench.inject("packet_loss", loss_percent=30, ports=f"{PORT + 2},{PORT + 3}", direction="out")
    none, late, both, lost = bench.udp(ports, 500)
    told = "\n".join(map(str, (none, late, both, lost)))
    assert untouched(none) and takes(80, late, none) and not late.lost, told
    assert takes(80, both, none) and lost_share(both, 0.3), told
    assert takes(0, lost, none) and lost_share(lost, 0.3), told
    of_loss, of_delay = bench.evidence_of(loss, delay)
    assert of_loss.hits == len(both.lost) + len(lost.lost) and of_delay.counters["matched"] == 1000
    bench.recover(delay)
    none, was_late, was_both, lost = bench.udp(ports, 500)
    told = "\n".join(map(str, (none, was_late, was_both, lost)))
    assert untouched(none) and untouched(was_late), told
    assert takes(0, was_both, none) and lost_share(was_both, 0.3) and lost_share(lost, 0.3), told
    bench.recover(loss)
    assert all(untouched(flow) for flow in bench.udp(ports, 100))


def test_a_link_that_carries_less(bench: NetBench) -> None:
    """1 Mbit/s out and 2 Mbit/s in, on addresses of their own; small things alone are as fast as ever."""
    out = bench.inject("bandwidth_limit", rate_kbit=1000, burst_kib=8, peers=[v4(1)], direction="out")
    back = bench.inject("bandwidth_limit", rate_kbit=2000, burst_kib=8, peers=[v4(2)], direction="in")
    (small,) = bench.udp([f"{v4(1)}/{PORT}/64"], 50, 20)
    assert untouched(small), str(small)
    put, get = bench.tcp("put", 250_000, v4(1)), bench.tcp("get", 500_000, v4(2))
    assert 0.75 < put.mbit_s < 1.0 and 1.5 < get.mbit_s < 2.0, (put, get)
    for verb, address in (("get", v4(1)), ("put", v4(2)), ("put", v4(0)), ("get", v4(0))):
        other = bench.tcp(verb, 1_000_000, address)
        assert other.end == "done" and other.mbit_s > 4, other
    of_out, of_back = bench.evidence_of(out, back)  # large segments count as one where they are matched
    assert of_out.hits > 20 and of_out.counters["sent"] > 165, of_out
    assert of_back.hits > 20 and of_back.counters["sent"] > 330, of_back
    bench.recover(out, back)
    assert bench.tcp("put", 1_000_000, v4(1)).mbit_s > 4 and bench.tcp("get", 1_000_000, v4(2)).mbit_s > 4


def test_large_packets_vanish(bench: NetBench) -> None:
    """IP packets of 1400 bytes pass, of 1401 do not: 28 are headers of IPv4 and UDP, 48 of IPv6 and UDP."""
    view = bench.inject("mtu_blackhole", mtu_bytes=1400, peers=[v4(1), v6(1)], direction="out")
    sizes = [(v4(1), 1372), (v4(1), 1373), (v6(1), 1352), (v6(1), 1353), (v4(0), 1472), (v6(0), 1452)]
    flows = bench.udp([f"{address}/{PORT}/{size}" for address, size in sizes], 30, 10)
    told = "\n".join(map(str, flows))
    assert [len(f.lost) for f in flows] == [0, 30, 0, 30, 0, 0] and not any(f.refused for f in flows), told
    assert bench.evidence(view).hits == 60
    assert bench.tcp("put", 900, v4(1)).end == "done", "small works"
    assert bench.tcp("get", 200_000, v4(1)).end == "done", "the other direction has room"
    large = bench.tcp("put", 200_000, v4(1), deadline_ms=3000)
    assert large.end == "deadline" and large.connect_us > 0 and large.retransmitted > 0, large
    assert bench.tcp("put", 200_000, v4(0)).end == bench.tcp("put", 200_000, v6(0)).end == "done"
    assert all(bench.seen(view).values()), bench.seen(view)
    probing = "net.ipv4.tcp_mtu_probing"
    usual = bench.sh(f"sysctl -n {probing}; sysctl -q {probing}=2")
    found = bench.tcp("put", 200_000, v4(1))
    bench.sh(f"sysctl -q {probing}={usual}; ip tcp_metrics flush")
    assert found.end == "done" and 0 < found.mss <= 1400 - 40, found
    bench.recover(view)
    assert bench.tcp("put", 200_000, v4(1)).end == "done"
    assert all(untouched(f) for f in bench.udp([f"{v4(1)}/{PORT}/1472", f"{v6(1)}/{PORT}/1452"], 30, 10))


UNIT = "meters"


def test_what_a_unit_sends(bench: NetBench) -> None:
    """The same traffic from the unit and from elsewhere, at the same time."""
    flow = f"{v4(1)}/{PORT}/64"
    enter = f"echo $$ > /sys/fs/cgroup/system.slice/{UNIT}.service/cgroup.procs"
    inside = f"{enter}; {net_meter.udp_script([flow], 300, 5.0)}"
    bench.sh(f"systemd-run --quiet --unit={UNIT} sleep infinity")
    view = bench.inject("packet_delay", delay_ms=60, unit=UNIT, direction="out")
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(bench.udp, [flow], 300, 5.0)
        (late,) = net_meter.flows_of(bench.sh(inside))
        (usual,) = elsewhere.result()
    assert not late.lost and takes(60, late, usual) and untouched(usual), (str(late), str(usual))
    assert bench.evidence(view).counters["matched"] == 300
    bench.recover(view)
    (after,) = net_meter.flows_of(bench.sh(inside))
    assert untouched(after), str(after)
    bench.sh(f"systemctl stop {UNIT}")


def test_all_is_lost_but_what_control_needs(bench: NetBench) -> None:
    """Everything of the management network and of the lab network: SSH and the agent go on."""
    views = [bench.inject("packet_loss", loss_percent=100, interface=name) for name in ("mgmt", "lan")]
    (gone,) = bench.udp([f"{v4(0)}/{PORT}/64"], 20, 10)
    assert len(gone.lost) == 20
    assert bench.sh("ping -c 2 -W 1 10.0.2.2 > /dev/null || echo lost") == "lost"
    assert bench.sh("echo here") == "here" and bench.evidence(views[1]).hits >= 20
    bench.recover(*views)
    assert untouched(bench.udp([f"{v4(0)}/{PORT}/64"], 50, 10)[0])


def test_tcp_notices(bench: NetBench) -> None:
    """Signs of loss, duplicates and wrong bits, as a real link would leave them."""
    loss = bench.inject("packet_loss", loss_percent=3, peers=[v4(1)], protocol="tcp")
    copies = bench.inject("packet_duplicate", duplicate_percent=20, peers=[v4(2)], protocol="tcp")
    wrong = bench.inject("packet_corrupt", corrupt_percent=3, peers=[v4(3)], protocol="tcp")
    for number in (1, 2, 3):
        for verb in ("put", "get"):
            stream = bench.tcp(verb, 400_000, v4(number))
            assert stream.end == "done", stream
    (datagrams,) = bench.udp([f"{v4(1)}/{PORT}/64"], 50, 5)
    assert untouched(datagrams), "of TCP alone"
    for view in (loss, copies, wrong):
        assert all(bench.seen(view).values()), (view.fault, bench.seen(view))
    bench.recover(loss, copies, wrong)
