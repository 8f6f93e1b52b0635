"""From a shape to the qdiscs that do it, outermost first. Pure.

gate (tbf): cuts what the stack hands over as one large segment into packets and drops those that are too large. It
is there where packets are treated one by one. harm (netem): everything by chance and by time. pipe (tbf): the
rate, with a queue counted in bytes. What is not needed is left out. Sources: tc-netem(8), tc-tbf(8), and
sch_tbf.c for what happens to a packet that is larger than the burst.
"""

from __future__ import annotations

from node_agent.host.links import WHOLE, Loss, Qdisc
from node_agent.shape import Bursts, Shape

ETHERNET = 14
_SLACK = 22
"""Ethernet's header with two VLAN tags: no packet of the interface's own MTU is larger than that on top."""
_GATE_RATE = 5_000_000_000
_GATE_QUEUE = 16 << 20
_LEAST_LIMIT, _MOST_LIMIT = 10_000, 2_000_000
_PACKETS_A_SECOND = 1_000_000
"""As many as a fast network card brings; kept for the length of the delay where no rate says otherwise."""
_SMALL_PACKET = 64
_QUEUE_S, _BURST_S = 0.25, 0.005
MAX_DRAIN_S = 10.0


def qdiscs_of(shape: Shape, mtu: int) -> tuple[Qdisc, ...]:
    """The chain of qdiscs of a lane; `mtu` is that of the interface whose packets come in."""
    chain: list[Qdisc] = []
    if needs_gate(shape):
        size = shape.max_packet_bytes + ETHERNET if shape.max_packet_bytes else mtu + _SLACK
        chain.append(Qdisc(kind="tbf", handle="1:", rate=_GATE_RATE, burst=size, limit=_GATE_QUEUE))
    if needs_netem(shape):
        chain.append(_netem(shape))
    if shape.rate_kbit:
        chain.append(_pipe(shape, mtu))
    parents = ("root", *(f"{one.handle}1" for one in chain))
    return tuple(_under(one, parent) for one, parent in zip(chain, parents, strict=False))


def needs_netem(shape: Shape) -> bool:
    """Whether anything happens by chance or by time."""
    harms = (shape.loss_percent, shape.bursts, shape.delay_ms, shape.jitter_ms, shape.duplicate_percent,
             shape.corrupt_percent)  # fmt: skip
    return any(harms)


def needs_gate(shape: Shape) -> bool:
    """Whether it matters what is one packet."""
    each = (shape.max_packet_bytes, shape.loss_percent, shape.bursts, shape.jitter_ms, shape.duplicate_percent,
            shape.corrupt_percent, shape.reorder_percent)  # fmt: skip
    return any(each)


def _under(qdisc: Qdisc, parent: str) -> Qdisc:
    return Qdisc(**{**qdisc.__dict__, "parent": parent})


def _netem(shape: Shape) -> Qdisc:
    return Qdisc(
        kind="netem", handle="2:", limit=packet_limit(shape), delay_ns=round(shape.delay_ms * 1e6),
        jitter_ns=round(shape.jitter_ms * 1e6),
        delay_correlation=share(shape.delay_correlation_percent) if shape.jitter_ms else 0,
        distribution=shape.distribution if shape.jitter_ms else "",
        loss=_chance(shape.loss_percent, shape.loss_correlation_percent),
        bursts=_loss(shape.bursts),
        duplicate=_chance(shape.duplicate_percent, shape.duplicate_correlation_percent),
        corrupt=_chance(shape.corrupt_percent, shape.corrupt_correlation_percent),
        reorder=_chance(shape.reorder_percent, shape.reorder_correlation_percent),
        gap=max(1, shape.reorder_gap) if shape.reorder_percent else 0, seed=shape.seed,
    )  # fmt: skip


def _loss(bursts: Bursts | None) -> Loss | None:
    if bursts is None:
        return None
    enter, leave = share(bursts.enter_percent), share(bursts.leave_percent)
    return Loss(enter, leave, share(bursts.loss_bad_percent), share(bursts.loss_good_percent))


def packet_limit(shape: Shape) -> int:
    """How many packets netem keeps: all that can come while the first of them is held back. Its own default of
    1000 would be a loss nobody asked for."""
    held_s = (shape.delay_ms + 4 * shape.jitter_ms) / 1000
    a_second = shape.rate_kbit * 125 / _SMALL_PACKET if shape.rate_kbit else _PACKETS_A_SECOND
    return min(_MOST_LIMIT, max(_LEAST_LIMIT, round(held_s * a_second)))


def _pipe(shape: Shape, mtu: int) -> Qdisc:
    rate = shape.rate_kbit * 125
    burst = shape.burst_bytes or round(rate * _BURST_S)
    queue = shape.queue_bytes or round(rate * _QUEUE_S)
    packet = mtu + _SLACK
    return Qdisc(
        kind="tbf", handle="3:", rate=rate, burst=max(burst, packet), limit=max(queue, 2 * packet)
    )  # fmt: skip


def drain_s(qdiscs: tuple[Qdisc | str, ...]) -> float:
    """How long packets may still be in a lane that gets no more of them; at most :data:`MAX_DRAIN_S`."""
    known = [one for one in qdiscs if isinstance(one, Qdisc)]
    held = sum((one.delay_ns + 4 * one.jitter_ns) / 1e9 for one in known)
    queued = sum(one.limit / one.rate for one in known if one.kind == "tbf" and one.rate)
    return min(MAX_DRAIN_S, 1.0 + held + queued)


def share(percent: float) -> int:
    """A chance in the kernel's units, rounded as tc(8) does."""
    return round(percent / 100 * WHOLE)


def _chance(percent: float, correlation: float) -> tuple[int, int]:
    return (share(percent), share(correlation)) if percent else (0, 0)


def same(wanted: tuple[Qdisc, ...], there: tuple[Qdisc | str, ...]) -> bool:
    """Whether a lane has its qdiscs; a kernel that tells no seed has the right one."""
    if any(one.corrupt[0] for one in wanted):
        # For checksums, see add_qdiscs of the host; told by kind and handle.
        there = tuple(one for one in there if not (isinstance(one, str) and one.split()[0] == "clsact"))
    if len(wanted) != len(there):
        return False
    return all(_same(a, b) for a, b in zip(wanted, there, strict=True))


def _same(wanted: Qdisc, there: Qdisc | str) -> bool:
    if isinstance(there, str):
        return False
    seedless = wanted.seed is None or there.seed is None
    ignored = ("burst", "distribution", "seed") if seedless else ("burst", "distribution")
    a, b = ({k: v for k, v in one.__dict__.items() if k not in ignored} for one in (wanted, there))
    if wanted.kind == "tbf":  # tbf counts its limit only for the fifo it begins with
        a["limit"] = b["limit"] = 0
    return a == b
