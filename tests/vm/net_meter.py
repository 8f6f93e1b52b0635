"""A meter of the network that is not the agent's: what becomes of numbered packets, and whether that fits a fault.

The program runs on two nodes; what it printed is judged here, by pure functions. Each of them can say no:
tests/unit/test_packet_faults.py shows them wrong parameters.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".c")
PLACE = "/usr/local/bin/net_meter"

ALPHA = 1e-5
"""How seldom a judgement may be wrong about a fault that is right."""


@dataclass(frozen=True)
class Echo:
    """A packet that came back: its number, the how manyth of its flow the peer saw in it, and how long it took."""

    seq: int
    arrival: int
    us: int


@dataclass(frozen=True)
class Flow:
    """All that is known of a flow. Echoes in the order in which they came back."""

    flow: str
    sent: int
    echoes: tuple[Echo, ...] = field(repr=False)
    refused: int = 0
    spoilt_there: int = 0
    spoilt_here: int = 0

    @cached_property
    def times_ms(self) -> tuple[float, ...]:
        """Of each packet that came back the time of its first echo, by number."""
        first: dict[int, int] = {}
        for echo in self.echoes:
            first.setdefault(echo.seq, echo.us)
        return tuple(first[seq] / 1000 for seq in sorted(first))

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def quick_ms(self) -> float:
        """Of the quickest fiftieth the slowest: what the network takes, rather than a machine that is busy."""
        return quantile(self.times_ms, 0.02)

    @cached_property
    def lost(self) -> tuple[int, ...]:
        """Numbers of the packets that never came back."""
        back = {echo.seq for echo in self.echoes}
        return tuple(seq for seq in range(self.sent) if seq not in back)

    @property
    def bursts(self) -> tuple[int, ...]:
        """How many packets in a row were lost, each time."""
        return runs(self.lost)

    @property
    def copies_there(self) -> int:
        """Packets that the peer saw more than once."""
        arrivals = {(echo.seq, echo.arrival) for echo in self.echoes}
        return len(arrivals) - len({seq for seq, _ in arrivals})

    @property
    def copies_here(self) -> int:
        """Echoes that came back more than once."""
        return len(self.echoes) - len({echo.arrival for echo in self.echoes})

    @cached_property
    def order_there(self) -> tuple[int, ...]:
        """Numbers of the packets as the peer saw them first."""
        first: dict[int, int] = {}
        for echo in sorted(self.echoes, key=lambda echo: echo.arrival):
            first.setdefault(echo.seq, echo.arrival)
        return tuple(sorted(first, key=lambda seq: first[seq]))

    @cached_property
    def order_here(self) -> tuple[int, ...]:
        """Numbers that the peer gave its echoes, as they came back first."""
        return tuple(dict.fromkeys(echo.arrival for echo in self.echoes))

    @property
    def whole(self) -> bool:
        """Everything came back once, in order and unspoilt."""
        return not self.lost and self.well

    @property
    def well(self) -> bool:
        """What came back came once, in order and unspoilt."""
        harm = self.spoilt_there or self.spoilt_here or self.refused
        seqs = [echo.seq for echo in self.echoes]
        return not harm and seqs == sorted(set(seqs))

    def __str__(self) -> str:
        middle = f"{self.quick_ms:.1f} to {self.median_ms:.1f} ms" if self.echoes else "never"
        return (
            f"{self.flow}: {len(self.lost)} of {self.sent} lost in {len(self.bursts)} bursts, {middle}, copies "
            f"{self.copies_there}/{self.copies_here}, overtaken {late(self.order_there)}/{late(self.order_here)}, "
            f"spoilt {self.spoilt_there}/{self.spoilt_here}, refused {self.refused}"
        )


def flow_of(data: dict[str, Any]) -> Flow:
    """A flow as the program prints it."""
    return Flow(**{**data, "echoes": tuple(Echo(*words) for words in data["echoes"])})


@dataclass(frozen=True)
class Stream:
    """A TCP stream: bytes that arrived, how long they took, and how it ended: "done", "deadline" or an error."""

    flow: str
    bytes: int
    us: int
    connect_us: int
    end: str
    mss: int
    retransmitted: int

    @property
    def mbit_s(self) -> float:
        return self.bytes * 8 / self.us


# -- judging ----------------------------------------------------------------------------------------------------


def runs(numbers: Sequence[int]) -> tuple[int, ...]:
    """Lengths of the runs of successive numbers, which are in order."""
    found: list[int] = []
    for at, number in enumerate(numbers):
        if at and number == numbers[at - 1] + 1:
            found[-1] += 1
        else:
            found.append(1)
    return tuple(found)


def late(numbers: Iterable[int]) -> int:
    """How many come after a higher one (RFC 4737, type-P-reordered)."""
    highest, count = -1, 0
    for number in numbers:
        count += number < highest
        highest = max(highest, number)
    return count


def early(numbers: Sequence[int]) -> int:
    """How many come before a lower one."""
    lowest, count = math.inf, 0
    for number in reversed(numbers):
        count += number > lowest
        lowest = min(lowest, number)
    return count


def share_fits(hits: int, tries: int, share: float, spread: float = 1.0) -> bool:
    """Whether so many of so many tries can be a share, by the two tails of the binomial distribution.

    `spread` is by how much the variance is larger than that of independent tries.
    """
    hits, tries = round(hits / spread), round(tries / spread)
    return _tail(hits, tries, share) > ALPHA / 2 and _tail(tries - hits, tries, 1 - share) > ALPHA / 2


def _tail(most: int, tries: int, share: float) -> float:
    """The chance of at most so many hits."""
    if most >= tries or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    fixed = math.lgamma(tries + 1)
    return sum(
        math.exp(
            fixed - math.lgamma(k + 1) - math.lgamma(tries - k + 1)
            + k * math.log(share) + (tries - k) * math.log1p(-share)
        )
        for k in range(most + 1)
    )  # fmt: skip


def burst_spread(share: float, burst: float) -> float:
    """Of two states with a share lost in bursts of a mean length: how much larger the variance of the share is.

    The chain forgets by 1 - p - r a packet; the variance grows by (1 + that) / (1 - that).
    """
    leave, enter = 1 / burst, share / (burst * (1 - share))
    memory = 1 - leave - enter
    return (1 + memory) / (1 - memory)


def bursts_fit(bursts: Sequence[int], mean: float) -> bool:
    """Whether lengths of bursts can be geometric with this mean."""
    if len(bursts) < 10:
        return False
    deviation = math.sqrt(mean * (mean - 1)) if mean > 1 else 0.0
    return abs(statistics.fmean(bursts) - mean) <= 4.4 * deviation / math.sqrt(len(bursts)) + 1e-9


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def spread_fits(values: Sequence[float], expected: Callable[[float], float], within: float) -> bool:
    """Whether quantiles are as expected: the middle by twice `within`, because a machine adds to all of them, and
    the others, counted from the middle, by `within`.
    """
    middle, wanted = quantile(values, 0.5), expected(0.5)
    return -within <= middle - wanted <= 2 * within and all(
        abs(quantile(values, q) - middle - (expected(q) - wanted)) <= within for q in QUANTILES
    )


def uniform(middle: float, reach: float) -> Callable[[float], float]:
    """Quantiles of an even distribution, to both sides of the middle."""
    return lambda q: middle + reach * (2 * q - 1)


def normal(middle: float, deviation: float) -> Callable[[float], float]:
    return statistics.NormalDist(middle, deviation).inv_cdf


# -- running ----------------------------------------------------------------------------------------------------

Sh = Callable[[str], str]
"""Runs a script on a node and returns what it printed."""


def install(argv: Sequence[str]) -> None:
    """Compile the meter here, and put it on a node; `argv` runs a command there, without its last word."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "meter"
        subprocess.run(("gcc", "-O2", "-static", "-pthread", "-o", str(program), str(SOURCE)), check=True)
        put = f"cat > {PLACE} && chmod 755 {PLACE}"
        subprocess.run((*argv, put), input=program.read_bytes(), check=True, timeout=120)


def udp_script(flows: Iterable[str], count: int, gap_ms: float, linger_ms: int = 1500) -> str:
    return f"{PLACE} udp {round(gap_ms * 1000)} {count} {linger_ms} {' '.join(flows)}"


def udp(sh: Sh, flows: Sequence[str], count: int, gap_ms: float, linger_ms: int = 1500) -> list[Flow]:
    """Packets of several flows, one of each every `gap_ms`: in the order of the flows."""
    return flows_of(sh(udp_script(flows, count, gap_ms, linger_ms)))


def flows_of(text: str) -> list[Flow]:
    return [flow_of(one) for one in json.loads(text)]


def tcp(sh: Sh, verb: str, size: int, flow: str, deadline_ms: int = 20_000) -> Stream:
    """A stream of so many bytes: `put` there or `get` from there."""
    return Stream(**json.loads(sh(f"{PLACE} tcp {verb} {size} {deadline_ms} {flow}")))
