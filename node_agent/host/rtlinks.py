"""Interfaces and queueing disciplines of the real machine.

Looks go by plain netlink messages, because the whole state is looked at before and after every injection; changes
to interfaces by pyroute2, which costs 28 MB when it is imported, so only a node that is shaped pays that. Sources:
rtnetlink(7), include/uapi/linux/{if_link,rtnetlink,pkt_sched,gen_stats}.h, net/sched/sch_{netem,tbf}.c.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from node_agent.host import CommandError
from node_agent.host.links import WHOLE, Interface, Loss, Qdisc, QdiscCounters
from node_agent.host.network import asked, attributes, fed

Run = Callable[[tuple[str, ...]], str]

_ROUTE, _DUMP = 0, 0x300
_LINK, _TC = struct.Struct("=BxHiII"), struct.Struct("=BxxxiIII")
_NEW_LINK, _GET_LINK, _NEW_QDISC, _GET_QDISC = 16, 18, 36, 38
_IFNAME, _MTU, _PEER, _LINKINFO, _ALIAS, _EXT_MASK = 3, 4, 5, 18, 20, 29
_SKIP_STATS = struct.pack("=HHI", 8, _EXT_MASK, 8)
_INFO_KIND = 1
_UP, _LOOPBACK = 0x1, 0x8
_KIND, _OPTIONS, _STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE = 1, 3
_ROOT = 0xFFFFFFFF
_NETEM = struct.Struct("=IIIIII")
_NETEM_CORR, _NETEM_REORDER, _NETEM_CORRUPT, _NETEM_LOSS = 1, 3, 4, 5
_NETEM_LATENCY64, _NETEM_JITTER64, _NETEM_SEED = 10, 11, 14
_LOSS_GE = 2
_TBF_PARMS, _TBF_RATE64 = 1, 4
_RATE = struct.Struct("=BBHhHI")
_TICK_NS = 64
"""PSCHED_TICKS2NS(1): old fields of netem count in these."""

_POLL_S = 0.02


class KernelLinks:
    """The real :class:`node_agent.host.links.Links`. Making one touches nothing."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def list(self) -> Sequence[Interface]:
        found = []
        for kind, body in asked(_ROUTE, _GET_LINK, _DUMP, _LINK.pack(0, 0, 0, 0, 0) + _SKIP_STATS):
            if kind == _NEW_LINK:
                _, _, index, flags, _ = _LINK.unpack_from(body)
                said = dict(attributes(body[_LINK.size :]))
                info = dict(attributes(said.get(_LINKINFO, b"")))
                name, alias = _text(said[_IFNAME]), _text(said.get(_ALIAS, b""))
                found.append(
                    Interface(
                        index, name, _text(info.get(_INFO_KIND, b"")), alias, _number(said.get(_MTU)),
                        bool(flags & _UP), _number(said.get(_PEER)), bool(flags & _LOOPBACK),
                    )
                )  # fmt: skip
        return found

    def qdiscs(self) -> Mapping[int, Sequence[Qdisc | str]]:
        found: dict[int, list[Qdisc | str]] = {}
        for index, handle, parent, said in _qdiscs():
            one = qdisc_of(_text(said.get(_KIND, b"")), handle, parent, said.get(_OPTIONS, b""))
            found.setdefault(index, []).append(one)
        return found

    def counters(self) -> Mapping[int, Sequence[QdiscCounters]]:
        found: dict[int, list[QdiscCounters]] = {}
        for index, handle, _, said in _qdiscs():
            stats = dict(attributes(said.get(_STATS2, b"")))
            packets = _number(stats.get(_STATS_BASIC, b"")[8:12])
            waiting, _, dropped = struct.unpack_from("=III", stats.get(_STATS_QUEUE, bytes(20)))
            found.setdefault(index, []).append(QdiscCounters(_handle(handle), packets, dropped, waiting))
        return found

    def add_ifb(self, name: str) -> None:
        if not Path("/sys/module/ifb").exists():
            # A module that the kernel loads by itself makes two devices nobody asked for.
            self._run(("modprobe", "ifb", "numifbs=0"))
        with _kernel() as ip:
            ip.link("add", ifname=name, kind="ifb")

    def describe(self, name: str, alias: str, mtu: int) -> None:
        with _kernel() as ip:
            ip.link("set", index=_index(name), mtu=mtu, IFLA_IFALIAS=alias)

    def add_qdiscs(self, name: str, qdiscs: Sequence[Qdisc]) -> None:
        # By argv: pyroute2 0.9 knows neither netem's seed, distributions and Gilbert-Elliott model, nor rates of a
        # tbf above 34 Gbit/s.
        try:
            fed(("tc", "-batch", "-"), _batch(name, qdiscs))
        except CommandError as error:
            if '"seed"' not in error.stderr:
                raise
            # tc(8) before iproute2 6.6 has no seed; the kernel draws as it likes then.
            self._run(("tc", "qdisc", "replace", "dev", name, "root", "pfifo"))
            self._run(("tc", "qdisc", "delete", "dev", name, "root"))
            fed(("tc", "-batch", "-"), _batch(name, [replace(one, seed=None) for one in qdiscs]))

    def set_up(self, name: str) -> None:
        quiet = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        if quiet.exists():
            quiet.write_text("1")
        with _kernel() as ip:
            ip.link("set", index=_index(name), state="up")

    def drain(self, name: str, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        try:
            index = socket.if_nametoindex(name)
            while any(one.waiting for one in self.counters().get(index, ())):
                if time.monotonic() >= end:
                    return False
                time.sleep(_POLL_S)
            time.sleep(_POLL_S)  # the device has a queue of its own, which nobody shows: its tasklet runs at once
        except OSError:
            return True  # it is gone, and what waited in it too
        return True

    def delete(self, name: str) -> None:
        try:
            index = socket.if_nametoindex(name)
        except OSError:
            return
        with _kernel() as ip:
            ip.link("del", index=index)


def _qdiscs() -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Interface, handle, parent and attributes of each qdisc; of an interface outermost first."""
    found = []
    for kind, body in asked(_ROUTE, _GET_QDISC, _DUMP, bytes(_TC.size)):
        if kind == _NEW_QDISC:
            _, index, handle, parent, _ = _TC.unpack_from(body)
            found.append((index, handle, parent, dict(attributes(body[_TC.size :]))))
    yield from sorted(found, key=lambda one: (one[0], one[2] != _ROOT, one[2]))


def qdisc_of(kind: str, handle: int, parent: int, options: bytes) -> Qdisc | str:
    """A qdisc from the attribute TCA_OPTIONS of the kernel's message. Pure."""
    where = "root" if parent == _ROOT else f"{parent >> 16:x}:{parent & 0xFFFF:x}"
    if kind == "tbf":
        return _tbf(_handle(handle), where, dict(attributes(options)))
    if kind == "netem":
        return _netem(_handle(handle), where, options)
    return f"{kind} {_handle(handle)}"


def _tbf(handle: str, parent: str, said: dict[int, bytes]) -> Qdisc:
    parms = said.get(_TBF_PARMS, bytes(2 * _RATE.size + 12))
    limit = _number(parms[2 * _RATE.size : 2 * _RATE.size + 4])
    rate = struct.unpack("=Q", said[_TBF_RATE64])[0] if _TBF_RATE64 in said else _RATE.unpack_from(parms)[5]
    return Qdisc(kind="tbf", handle=handle, parent=parent, limit=limit, rate=rate)


def _netem(handle: str, parent: str, options: bytes) -> Qdisc:
    latency, limit, loss, gap, duplicate, jitter = _NETEM.unpack_from(options)
    said = dict(attributes(options[_NETEM.size :]))
    delay_correlation, loss_correlation, duplicate_correlation = _numbers(said.get(_NETEM_CORR), 3)
    models = dict(attributes(said.get(_NETEM_LOSS, b"")))
    enter, leave, kept, good = _numbers(models.get(_LOSS_GE), 4)
    bursts = Loss(enter, leave, WHOLE - kept, good) if _LOSS_GE in models else None
    reorder, corrupt = _numbers(said.get(_NETEM_REORDER), 2), _numbers(said.get(_NETEM_CORRUPT), 2)
    seed = _number(said.get(_NETEM_SEED), "=Q") if _NETEM_SEED in said else None
    return Qdisc(
        kind="netem", handle=handle, parent=parent, limit=limit, gap=gap,
        delay_ns=_wide(said.get(_NETEM_LATENCY64), latency), jitter_ns=_wide(said.get(_NETEM_JITTER64), jitter),
        delay_correlation=delay_correlation, loss=(loss, loss_correlation), bursts=bursts,
        duplicate=(duplicate, duplicate_correlation), reorder=(reorder[0], reorder[1]),
        corrupt=(corrupt[0], corrupt[1]), seed=seed,
    )  # fmt: skip


def _batch(name: str, qdiscs: Sequence[Qdisc]) -> str:
    lines = [f"qdisc add dev {name} {' '.join(tc_words(one))}" for one in qdiscs]
    if any(one.corrupt[0] for one in qdiscs):
        # Packets that came in have had their checksums verified (by the card, or by GRO): netem's wrong bits would
        # reach programs as data. With checksums made anew, and said to be unverified, the stack looks again.
        lines += [f"qdisc add dev {name} clsact",
                  f"filter add dev {name} egress matchall action csum ip4h and tcp and udp and icmp"]  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def tc_words(qdisc: Qdisc) -> tuple[str, ...]:
    """The words that make tc(8) add it. Pure."""
    at = ("root",) if qdisc.parent == "root" else ("parent", qdisc.parent)
    head = (*at, "handle", qdisc.handle, qdisc.kind)
    if qdisc.kind == "tbf":
        return (*head, "rate", f"{qdisc.rate}bps", "burst", str(qdisc.burst), "limit", str(qdisc.limit))
    return (*head, "limit", str(qdisc.limit), *_netem_words(qdisc))


def _netem_words(qdisc: Qdisc) -> Iterator[str]:
    if qdisc.delay_ns or qdisc.jitter_ns:
        yield from ("delay", f"{qdisc.delay_ns}ns")
    if qdisc.jitter_ns:
        yield f"{qdisc.jitter_ns}ns"
        yield from (_share(qdisc.delay_correlation),) if qdisc.delay_correlation else ()
        yield from ("distribution", qdisc.distribution) if qdisc.distribution not in ("", "uniform") else ()
    yield from _chance(("loss", "random"), qdisc.loss)
    if qdisc.bursts:
        model = qdisc.bursts
        shares = (model.enter, model.leave, model.bad, model.good)  # tc calls them p, r, 1-h and 1-k
        yield from ("loss", "gemodel", *(_share(one) for one in shares))
    yield from _chance(("duplicate",), qdisc.duplicate)
    yield from _chance(("corrupt",), qdisc.corrupt)
    yield from _chance(("reorder",), qdisc.reorder)
    if qdisc.reorder[0] and qdisc.gap > 1:
        yield from ("gap", str(qdisc.gap))
    if qdisc.seed is not None:
        yield from ("seed", str(qdisc.seed))


def _chance(words: tuple[str, ...], chance: tuple[int, int]) -> tuple[str, ...]:
    if not chance[0]:
        return ()
    return (*words, _share(chance[0]), *((_share(chance[1]),) if chance[1] else ()))


def _share(part: int) -> str:
    return f"{part / WHOLE * 100:.12f}%"


@contextmanager
def _kernel() -> Iterator[Any]:
    """pyroute2's way to the kernel; its errors are OSErrors with the kernel's errno."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as error:
        raise OSError(error.code, str(error)) from error


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        raise OSError(errno.ENODEV, "no such interface", name) from None


def _handle(number: int) -> str:
    return f"{number >> 16:x}:"


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _number(data: bytes | None, form: Literal["=I", "=Q"] = "=I") -> int:
    return int(struct.unpack_from(form, data)[0]) if data else 0


def _numbers(data: bytes | None, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f"={count}I", data) if data else (0,) * count


def _wide(data: bytes | None, ticks: int) -> int:
    return int(struct.unpack("=q", data)[0]) if data else ticks * _TICK_NS
