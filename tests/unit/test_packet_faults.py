"""Faults of packets: what is asked of the kernel; and that the meter's judgement tells right from wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from node_agent.catalog import find_fault, make_fault
from node_agent.errors import Refusal
from node_agent.fault import build_fault
from node_agent.faults.network.chances import bursts_of, chance_for
from node_agent.faults.network.shaping import ShapedFault
from node_agent.host.rtlinks import qdisc_of
from node_agent.lanes import LaneCounters
from node_agent.lanes.qdiscs import qdiscs_of, same
from node_agent.shape import Shape
from tests.vm import net_meter
from tests.vm.net_meter import Echo, Flow

COUNT = 3000
SEEDS = range(3)


def flow(*echoes: tuple[int, int, float], sent: int = 0, **more: int) -> Flow:
    """A flow by number, arrival there and milliseconds of each echo."""
    found = tuple(Echo(seq, arrival, int(ms * 1000)) for seq, arrival, ms in echoes)
    return Flow("simulated", sent or len({e.seq for e in found}), found, **more)


def with_losses(lost: Iterator[bool], count: int = COUNT) -> Flow:
    back = [seq for seq in range(count) if not next(lost)]
    return flow(*((seq, at, 1.0) for at, seq in enumerate(back)), sent=count)


def independent(share: float, seed: int) -> Iterator[bool]:
    chance = random.Random(seed)
    while True:
        yield chance.random() < share


def two_states(enter: float, leave: float, seed: int) -> Iterator[bool]:
    """Gilbert's model: in the bad state everything is lost."""
    chance, bad = random.Random(seed), False
    while True:
        if bad:
            bad = chance.random() >= leave
            yield True
        else:
            bad = chance.random() < enter
            yield False


def test_numbers_of_a_flow() -> None:
    one = flow((0, 0, 5), (2, 1, 7), (1, 2, 9), (2, 3, 8), (5, 4, 6), (5, 4, 6), sent=7)
    assert one.lost == (3, 4, 6) and one.bursts == (2, 1)
    assert one.copies_there == 1 and one.copies_here == 1
    assert one.order_there == (0, 2, 1, 5) and one.order_here == (0, 1, 2, 3, 4)
    assert one.times_ms == (5, 9, 7, 6) and one.median_ms == 6.5
    assert not one.whole and flow((0, 0, 1), (1, 1, 1)).whole
    assert flow((1, 1, 1), (0, 0, 1)).order_here == (1, 0)
    lossy = flow((0, 0, 1), (2, 1, 1), sent=3)
    assert (
        lossy.well
        and not lossy.whole
        and not flow((0, 0, 1), (0, 1, 1)).well
        and not flow((1, 0, 1), (0, 1, 1)).well
    )
    assert net_meter.late((0, 4, 1, 2, 3, 5)) == 3 and net_meter.early((0, 4, 1, 2, 3, 5)) == 1
    assert net_meter.late(range(9)) == net_meter.early(range(9)) == 0
    assert not flow((0, 0, 1), spoilt_there=1).whole and not flow((0, 0, 1), spoilt_here=1).whole


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_share_is_believed_and_others_are_not(share: float, seed: int) -> None:
    hits = len(with_losses(independent(share, seed)).lost)
    assert net_meter.share_fits(hits, COUNT, share)
    assert not net_meter.share_fits(hits, COUNT, share * 1.5 + 0.015)
    assert not net_meter.share_fits(hits, COUNT, share / 3), "and neither is far less"
    assert not net_meter.share_fits(0, COUNT, share) and not net_meter.share_fits(COUNT, COUNT, share)


def test_all_and_nothing() -> None:
    assert net_meter.share_fits(COUNT, COUNT, 1) and not net_meter.share_fits(COUNT - 1, COUNT, 1)
    assert net_meter.share_fits(0, COUNT, 0) and not net_meter.share_fits(1, COUNT, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_bursts_are_believed_and_others_are_not(seed: int) -> None:
    """A fifth lost in bursts of 5: leave = 1/5, enter = 1/20."""
    spread = net_meter.burst_spread(0.2, 5)
    found = with_losses(two_states(1 / 20, 1 / 5, seed))
    assert net_meter.bursts_fit(found.bursts, 5) and net_meter.share_fits(len(found.lost), COUNT, 0.2, spread)
    assert not net_meter.bursts_fit(found.bursts, 3) and not net_meter.bursts_fit(found.bursts, 9)
    assert not net_meter.share_fits(len(found.lost), COUNT, 0.08, spread)
    single = with_losses(independent(0.2, seed))
    assert not net_meter.bursts_fit(single.bursts, 5), "the same share, each packet for itself"
    assert not net_meter.share_fits(len(found.lost) * 2, COUNT, 0.2, spread)
    assert not net_meter.bursts_fit((5,) * 9, 5), "too few to say"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_distribution_is_believed_and_others_are_not(seed: int) -> None:
    """100 ms and 60 ms around it, on a machine that adds some milliseconds to each."""
    chance = random.Random(seed)

    def noisy(ms: float) -> float:
        return ms + 5 + chance.expovariate(1 / 4)

    even = [noisy(chance.uniform(40, 160)) for _ in range(800)]
    bell = [noisy(chance.gauss(100, 60)) for _ in range(800)]
    fits, uniform, normal = net_meter.spread_fits, net_meter.uniform, net_meter.normal
    assert fits(even, uniform(100, 60), 15) and fits(bell, normal(100, 60), 15)
    assert not fits(even, normal(100, 60), 15) and not fits(bell, uniform(100, 60), 15)
    assert not fits(even, uniform(100, 30), 15) and not fits(even, uniform(140, 60), 15)
    assert not fits(even, uniform(60, 60), 15) and not fits([100.0] * 800, uniform(100, 60), 15)


# -- what is asked of the kernel ----------------------------------------------------------------------------------


def fault(name: str, **parameters: Any) -> ShapedFault:
    made = make_fault(name, parameters)
    assert isinstance(made, ShapedFault)
    return made


@pytest.mark.parametrize(
    ("name", "parameters", "shape"),
    [
        ("packet_loss", {"loss_percent": 100}, Shape(loss_percent=100, seed=0)),
        ("packet_loss", {"loss_percent": 20, "burst_packets": 5, "seed": 7},
         Shape(bursts=bursts_of(20, 5), seed=7)),
        ("packet_delay", {"delay_ms": 80}, Shape(delay_ms=80)),
        ("packet_delay", {"delay_ms": 80, "jitter_ms": 9, "distribution": "pareto"},
         Shape(delay_ms=80, jitter_ms=9, distribution="pareto", seed=0)),
        ("packet_jitter", {"jitter_ms": 30}, Shape(delay_ms=30, jitter_ms=30, seed=0)),
        ("packet_jitter", {"jitter_ms": 30, "delay_ms": 70}, Shape(delay_ms=70, jitter_ms=30, seed=0)),
        ("packet_reorder", {"reorder_percent": 25, "delay_ms": 20, "gap_packets": 5},
         Shape(delay_ms=20, reorder_percent=25, reorder_gap=5, seed=0)),
        ("packet_duplicate", {"duplicate_percent": 3}, Shape(duplicate_percent=3, seed=0)),
        ("packet_corrupt", {"corrupt_percent": 4}, Shape(corrupt_percent=4, seed=0)),
        ("bandwidth_limit", {"rate_kbit": 2000, "burst_kib": 16, "queue_kib": 64},
         Shape(rate_kbit=2000, burst_bytes=16384, queue_bytes=65536)),
        ("mtu_blackhole", {"mtu_bytes": 1300}, Shape(max_packet_bytes=1300)),
    ],
)  # fmt: skip
def test_parameters_become_a_shape(name: str, parameters: dict[str, Any], shape: Shape) -> None:
    assert fault(name, **parameters).shape() == shape


@pytest.mark.parametrize("name", ["loss", "reorder", "duplicate", "corrupt"])
def test_a_correlation_does_not_change_the_share(name: str) -> None:
    parameters = {f"{name}_percent": 10, "correlation_percent": 50}
    shape = fault(f"packet_{name}", **parameters).shape().model_dump()
    assert 27 < shape[f"{name}_percent"] < 28.5 and shape[f"{name}_correlation_percent"] == 50


@pytest.mark.parametrize("correlation", [10, 50, 90])
@pytest.mark.parametrize("percent", [1, 10, 50, 97])
def test_netem_hits_the_share_that_was_wanted(percent: float, correlation: float) -> None:
    """The kernel's own arithmetic, in integers of 32 bits."""
    top, rho = 1 << 32, int(correlation / 100 * ((1 << 32) - 1)) + 1
    threshold = int(chance_for(percent, correlation) / 100 * top)
    chance, last, count, hits = random.Random(5), 0, 100_000, 0
    for _ in range(count):
        last = (chance.getrandbits(32) * (top - rho) + last * rho) >> 32
        hits += last <= threshold
    memory = (1 + correlation / 100) / (1 - correlation / 100)
    assert net_meter.share_fits(hits, count, percent / 100, memory)


def test_without_correlation_and_at_the_ends_the_chance_is_the_share() -> None:
    assert (chance_for(10, 0), chance_for(100, 90), chance_for(0, 90)) == (10, 100, 0)


def test_what_verifies_checksums_is_no_difference_of_a_lane_that_corrupts() -> None:
    for shape, is_same in ((Shape(corrupt_percent=5), True), (Shape(loss_percent=5), False)):
        wanted = qdiscs_of(shape, 1500)
        assert (
            same(wanted, wanted)
            and same(wanted, (*wanted, qdisc_of("clsact", 0xFFFF0000, 0xFFFFFFF1, b""))) is is_same
        )


def test_bursts_of_a_mean_length_make_up_the_share() -> None:
    for percent, packets in ((20, 5), (1, 30), (40, 1), (99, 200)):
        found = bursts_of(percent, packets)
        assert found.mean_loss_percent == pytest.approx(percent) and found.leave_percent == 100 / packets
    one = bursts_of(20, 5)
    lost = with_losses(two_states(one.enter_percent / 100, one.leave_percent / 100, 1))
    assert net_meter.bursts_fit(lost.bursts, 5)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("packet_loss", {"loss_percent": 0}, "loss_percent"),
        ("packet_loss", {"loss_percent": 101}, "loss_percent"),
        ("packet_loss", {"loss_persent": 10}, "loss_persent"),
        ("packet_loss", {"loss_percent": 90, "burst_packets": 2}, "less than 66.67 percent"),
        ("packet_loss", {"loss_percent": 100, "burst_packets": 9}, "less than 90 percent"),
        ("packet_loss", {"burst_packets": 0.5}, "at least 1 packet"),
        ("packet_loss", {"burst_packets": 5, "correlation_percent": 10}, "exclude each other"),
        ("packet_loss", {"correlation_percent": 99}, "correlation_percent"),
        ("packet_delay", {"delay_ms": 0}, "delay_ms"),
        ("packet_delay", {"delay_ms": 10, "jitter_ms": 11}, "before it was sent"),
        ("packet_jitter", {"delay_ms": 10, "jitter_ms": 11}, "before it was sent"),
        ("packet_jitter", {"distribution": "gauss"}, "distribution"),
        ("packet_reorder", {"delay_ms": 0}, "delay_ms"),
        ("bandwidth_limit", {"rate_kbit": 7}, "rate_kbit"),
        ("mtu_blackhole", {"mtu_bytes": 67}, "mtu_bytes"),
        ("mtu_blackhole", {"direction": "up"}, "direction"),
    ],
)
def test_wrong_parameters_are_refused(name: str, parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        build_fault(find_fault(name), parameters)


COUNTED = LaneCounters(matched=1000, dropped=97, waiting=3, sent=1000)


@pytest.mark.parametrize(
    ("name", "parameters", "hits"),
    [
        ("packet_loss", {}, 97),
        ("packet_delay", {}, 1000),
        ("packet_duplicate", {}, 100),
        ("packet_corrupt", {"corrupt_percent": 5}, 55),
        ("packet_reorder", {"reorder_percent": 50, "gap_packets": 5}, 110),
        ("mtu_blackhole", {}, 97),
    ],
)
def test_what_counts_as_a_hit(name: str, parameters: dict[str, Any], hits: int) -> None:
    assert fault(name, **parameters).hits(COUNTED) == hits


def test_signs_are_of_the_protocol_and_the_direction() -> None:
    assert [s.name for s in fault("packet_loss").signs(None)] == ["Tcp RetransSegs"]
    assert fault("packet_loss", protocol="udp").signs(None) == ()
    assert [s.name for s in fault("packet_corrupt", direction="in").signs(None)] == ["Tcp InCsumErrors"]
    assert len(fault("packet_duplicate").signs(None)) == 2


def test_the_other_names_of_packet_loss() -> None:
    assert fault("packet_loss_sendto").direction == "out" and fault("packet_loss_recvfrom").direction == "in"
