"""What several shapes do to one packet, and the qdiscs that do it."""

from __future__ import annotations

from itertools import permutations

import pytest
from pydantic import ValidationError

from node_agent.host.links import WHOLE, Loss, Qdisc
from node_agent.host.rtlinks import qdisc_of, tc_words
from node_agent.lanes.qdiscs import MAX_DRAIN_S, drain_s, packet_limit, qdiscs_of, same
from node_agent.shape import Bursts, Shape
from node_agent.shape_merge import merged


def test_chances_delays_rates() -> None:
    a = Shape(loss_percent=10, delay_ms=20, rate_kbit=1000, queue_bytes=5000, duplicate_percent=50)
    b = Shape(loss_percent=20, delay_ms=5, rate_kbit=3000, max_packet_bytes=900, duplicate_percent=50, jitter_ms=3)
    both = merged((a, b))
    assert both.loss_percent == pytest.approx(28) and both.duplicate_percent == pytest.approx(75)
    assert (both.delay_ms, both.jitter_ms, both.max_packet_bytes) == (25, 3, 900)
    assert (both.rate_kbit, both.queue_bytes) == (1000, 5000), "the slower one, with its queue"


def test_alone_is_unchanged() -> None:
    one = Shape(loss_percent=10, loss_correlation_percent=25, seed=4)
    assert merged((one,)) == one


def test_random_loss_beside_bursts_is_lost_in_either_state() -> None:
    bursts = Shape(bursts=Bursts(enter_percent=1, leave_percent=10, loss_bad_percent=80))
    both = merged((bursts, Shape(loss_percent=10)))
    assert both.loss_percent == 0 and both.bursts is not None
    assert both.bursts.loss_bad_percent == pytest.approx(82) and both.bursts.loss_good_percent == pytest.approx(10)


def test_normal_jitters_add_by_their_squares() -> None:
    a, b = (Shape(delay_ms=10, jitter_ms=j, distribution="normal") for j in (3, 4))
    assert merged((a, b)).jitter_ms == pytest.approx(5)


def test_seeds_of_many_are_one_seed() -> None:
    found = {merged(order).seed for order in permutations((Shape(seed=1), Shape(seed=2)))}
    assert len(found) == 1 and None not in found
    assert merged((Shape(seed=1), Shape())).seed is None


def test_shapes_that_make_no_sense() -> None:
    for wrong in ({"reorder_percent": 5}, {"max_packet_bytes": 10}, {"loss_percent": 101}, {"los_percent": 1},
                  {"loss_percent": 1, "bursts": Bursts(enter_percent=1, leave_percent=1)}):  # fmt: skip
        with pytest.raises(ValidationError):
            Shape.model_validate(wrong)


def test_the_mean_of_bursts() -> None:
    assert Bursts(enter_percent=1, leave_percent=9).mean_loss_percent == pytest.approx(10)


@pytest.mark.parametrize(
    ("shape", "least", "most"),
    [
        (Shape(loss_percent=1), 10_000, 10_000),
        (Shape(delay_ms=100), 100_000, 100_000),
        (Shape(delay_ms=60_000), 2_000_000, 2_000_000),
        (Shape(delay_ms=10_000, rate_kbit=8_000), 156_000, 157_000),
    ],
)
def test_netem_keeps_what_comes_while_the_first_is_held_back(shape: Shape, least: int, most: int) -> None:
    assert least <= packet_limit(shape) <= most


def test_only_what_is_needed() -> None:
    kinds = {
        "delay": Shape(delay_ms=5), "rate": Shape(rate_kbit=100), "loss": Shape(loss_percent=5),
        "size": Shape(max_packet_bytes=700), "all": Shape(delay_ms=5, loss_percent=1, rate_kbit=100),
    }  # fmt: skip
    found = {name: [(q.kind, q.parent) for q in qdiscs_of(shape, 1500)] for name, shape in kinds.items()}
    assert found == {
        "delay": [("netem", "root")],
        "rate": [("tbf", "root")],
        "loss": [("tbf", "root"), ("netem", "1:1")],
        "size": [("tbf", "root")],
        "all": [("tbf", "root"), ("netem", "1:1"), ("tbf", "2:1")],
    }
    assert qdiscs_of(kinds["size"], 1500)[0].burst == 714, "with the header of Ethernet"


def test_words_for_tc() -> None:
    shape = Shape(
        delay_ms=80, jitter_ms=10, distribution="pareto", delay_correlation_percent=25, duplicate_percent=1,
        corrupt_percent=0.5, corrupt_correlation_percent=10, reorder_percent=25, reorder_gap=5,
        bursts=Bursts(enter_percent=1, leave_percent=10), seed=9,
    )  # fmt: skip
    words = " ".join(tc_words(qdiscs_of(shape, 1500)[1]))
    assert words == (
        "parent 1:1 handle 2: netem limit 120000 delay 80000000ns 10000000ns 25.000000005821% distribution pareto "
        "loss gemodel 1.000000009313% 9.999999990687% 100.000000000000% 0.000000000000% "
        "duplicate 1.000000009313% corrupt 0.499999993015% 9.999999990687% reorder 25.000000005821% gap 5 seed 9"
    ).replace("25.000000005821", f"{round(0.25 * WHOLE) / WHOLE * 100:.12f}").replace(
        "1.000000009313", f"{round(0.01 * WHOLE) / WHOLE * 100:.12f}"
    ).replace("9.999999990687", f"{round(0.1 * WHOLE) / WHOLE * 100:.12f}").replace(
        "0.499999993015", f"{round(0.005 * WHOLE) / WHOLE * 100:.12f}"
    )


def test_what_the_kernel_tells_is_understood() -> None:
    """A message of Linux 6.12 for: delay 80ms 10ms 25%, loss gemodel 1% 10% 70% 0.1%, seed 77."""
    attributes = bytes.fromhex(
        "10000100" "00000040" "00000000" "00000000"  # correlations
        "18000580" "14000200" "5c8f0200" "99191900" "cccc4c4c" "89410400"
        "0c000a00" "00b4c40400000000" "0c000b00" "8096980000000000" "0c000e00" "4d00000000000000"
    )  # fmt: skip
    head = bytes.fromhex("d0124b00102700000000000000000000000000005a620200")
    found = qdisc_of("netem", 2 << 16, 1 << 16 | 1, head + attributes)
    assert isinstance(found, Qdisc)
    assert (found.handle, found.parent, found.limit, found.seed) == ("2:", "1:1", 10_000, 77)
    assert (found.delay_ns, found.jitter_ns, found.delay_correlation) == (80_000_000, 10_000_000, 0x40000000)
    assert found.bursts == Loss(0x00028F5C, 0x00191999, WHOLE - 0x4C4CCCCC, 0x00044189)
    assert qdisc_of("fq_codel", 0, 0xFFFFFFFF, b"") == "fq_codel 0:"


def test_same_means_the_kernel_has_it() -> None:
    wanted = qdiscs_of(Shape(loss_percent=5, seed=3, rate_kbit=100), 1500)
    told = tuple(Qdisc(**{**q.__dict__, "seed": None, "burst": 0}) for q in wanted)
    assert same(wanted, told), "an old kernel tells no seed"
    assert not same(wanted, told[:-1]) and not same(wanted, (*told[:-1], "fq"))
    other = (told[0], Qdisc(**{**told[1].__dict__, "loss": (1, 0)}), told[2])
    assert not same(wanted, other)


def test_draining_is_bounded() -> None:
    assert drain_s(qdiscs_of(Shape(delay_ms=60_000), 1500)) == MAX_DRAIN_S
    assert 1 < drain_s(qdiscs_of(Shape(delay_ms=100), 1500)) < 2
    assert drain_s(("fq",)) == 1
