"""Network interfaces and their queueing disciplines, as shaping sees the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

WHOLE = 2**32 - 1
"""A chance of 100 % in the kernel's units."""


@dataclass(frozen=True)
class Interface:
    """An interface of this network namespace. `kind` as `ip -d link` says it, such as "veth"; empty: hardware.

    `peer` is the number of the interface it hangs on (IFLA_LINK), perhaps in another namespace; 0: none.
    """

    index: int
    name: str
    kind: str
    alias: str
    mtu: int
    up: bool
    peer: int = 0
    loopback: bool = False


@dataclass(frozen=True)
class Loss:
    """The four chances of netem's Gilbert-Elliott model, as shares of 2**32 - 1: to get into the bad state, out of
    it, to be lost in it, and in the good one. tc-netem(8) calls them p, r, 1-h and 1-k."""

    enter: int
    leave: int
    bad: int
    good: int


@dataclass(frozen=True)
class Qdisc:
    """A netem or tbf, in the kernel's own units, so that what was asked for and what is there can be compared.

    Nanoseconds, packets (`limit` of netem), bytes (`limit` of tbf), bytes a second; chances as shares of
    2**32 - 1, where a correlation stands beside its chance. `seed`: None where the kernel does not tell or takes
    none. What the kernel never tells again, a distribution and the burst of a tbf, is left out of comparisons.
    """

    kind: Literal["netem", "tbf"]
    handle: str
    parent: str = "root"
    limit: int = 0
    delay_ns: int = 0
    jitter_ns: int = 0
    delay_correlation: int = 0
    loss: tuple[int, int] = (0, 0)
    bursts: Loss | None = None
    duplicate: tuple[int, int] = (0, 0)
    reorder: tuple[int, int] = (0, 0)
    gap: int = 0
    corrupt: tuple[int, int] = (0, 0)
    rate: int = 0
    seed: int | None = None
    burst: int = field(default=0, compare=False)
    distribution: str = field(default="", compare=False)


@dataclass(frozen=True)
class QdiscCounters:
    """Since it was made: packets that went out of it and packets it dropped; and what waits in it now."""

    handle: str
    packets: int
    dropped: int
    waiting: int


class LinksReader(Protocol):
    """Looking. All raise OSError."""

    def list(self) -> Sequence[Interface]:
        """All interfaces of this network namespace."""

    def qdiscs(self) -> Mapping[int, Sequence[Qdisc | str]]:
        """What hangs on each interface, by its number, outermost first; kind and handle, such as "htb 5:", where
        it is neither netem nor tbf."""

    def counters(self) -> Mapping[int, Sequence[QdiscCounters]]:
        """The same with their counters."""


class Links(LinksReader, Protocol):
    """Changing. Raise OSError with the kernel's errno, or :class:`node_agent.host.CommandError`."""

    def add_ifb(self, name: str) -> None:
        """Make an IFB, a device that gives a packet back to the interface it came from. It is down."""

    def describe(self, name: str, alias: str, mtu: int) -> None:
        """Set the alias and the MTU of an interface."""

    def add_qdiscs(self, name: str, qdiscs: Sequence[Qdisc]) -> None:
        """Hang qdiscs on an interface that has none, outermost first.

        Beside one that corrupts also a clsact, which has the receiver verify checksums once more.
        """

    def set_up(self, name: str) -> None:
        """Set up an IFB. It gets no addresses, so the system itself sends nothing through it."""

    def drain(self, name: str, timeout_s: float) -> bool:
        """Wait until no packet waits in its qdiscs; False where some still do when the time is over."""

    def delete(self, name: str) -> None:
        """Delete an interface; gone already is fine."""
