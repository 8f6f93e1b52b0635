"""Interfaces, addresses, routes and neighbours by rtnetlink(7), byte for byte.

Written on plain sockets, because entries have to come back as they were: see :mod:`node_agent.host.rtmessages`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from node_agent.host import rtmessages as rt
from node_agent.host.routing import Entry, EntryKind, Link

_HEAD = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_REQUEST, _ACK, _DUMP, _INTERRUPTED = 0x1, 0x4, 0x300, 0x10
_REPLACE, _EXCLUSIVE, _CREATE, _APPEND = 0x100, 0x200, 0x400, 0x800
_ERROR, _DONE = 2, 3
_NEW_LINK, _GET_LINK = 16, 18
_NEW: dict[EntryKind, int] = {"address": 20, "route": 24, "neighbour": 28, "nexthop": 104}
_GET_ADDRESS, _GET_ROUTE, _GET_NEIGHBOUR, _GET_NEXTHOP = 22, 26, 30, 106
_PUT: dict[EntryKind, int] = {
    "address": _CREATE | _EXCLUSIVE, "route": _CREATE | _APPEND, "neighbour": _CREATE | _REPLACE,
    "nexthop": _CREATE | _REPLACE,
}  # fmt: skip
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_EXT_MASK, _SKIP_STATS = 1, 3, 29, 8
_UP, _LOOPBACK, _NOARP, _LOWER_UP = 0x1, 0x8, 0x80, 0x10000
_FIB_MATCH = 0x2000
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_TENTATIVE = 0x40
_ANSWER_S, _BYTES, _TRIES, _POLL_S = 5.0, 1 << 18, 5, 0.05
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.ESRCH, errno.EAFNOSUPPORT)
_GONE = (errno.ESRCH, errno.ENOENT, errno.EADDRNOTAVAIL, errno.ENODEV)


class KernelRouting:
    """The real :class:`node_agent.host.routing.Routing`. `in_time` is for tests: the clock that waits go by."""

    def __init__(self, in_time: Callable[[], float] = time.monotonic) -> None:
        self._now = in_time

    def links(self) -> Sequence[Link]:
        mask = rt.packed([(_IFLA_EXT_MASK, struct.pack("=I", _SKIP_STATS))])
        found = []
        for body in _dump(_GET_LINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + mask):
            _, _, index, flags, _ = _LINK.unpack_from(body)
            said = dict(rt.attributes(body[_LINK.size :]))
            name = said[_IFLA_IFNAME].rstrip(b"\0").decode(errors="replace")
            mac = said.get(_IFLA_ADDRESS, b"").hex(":")
            found.append(
                Link(index, name, up=bool(flags & _UP), carrier=bool(flags & _LOWER_UP),
                     resolves=not flags & (_NOARP | _LOOPBACK), mac=mac, loopback=bool(flags & _LOOPBACK))
            )  # fmt: skip
        return found

    def attached(self, indexes: Sequence[int]) -> Sequence[Entry]:
        wanted = set(indexes)
        nexthops = [rt.entry_of("nexthop", body) for body in _nexthops()]
        single = {rt.nexthop_of(n) for n in nexthops if wanted & set(rt.interfaces_of(n))}
        objects = single | {rt.nexthop_of(n) for n in nexthops if single & set(rt.members_of(n))}
        routes = [r for r in self.routes() if wanted & set(rt.interfaces_of(r)) or rt.nexthop_of(r) in objects]
        kept = [
            *self.addresses(),
            *(n for n in nexthops if rt.nexthop_of(n) in single),
            *(n for n in nexthops if rt.nexthop_of(n) in objects - single),  # groups of them
            *sorted(routes, key=_comes_back),
            *(n for n in self.neighbours() if rt.by_hand(n)),
        ]  # fmt: skip
        named = (e for e in kept if e.kind in ("route", "nexthop") or wanted & set(rt.interfaces_of(e)))
        return [entry for entry in named if not rt.learned(entry)]

    def addresses(self) -> Sequence[Entry]:
        return [rt.entry_of("address", body) for body in _addresses()]

    def routes(self) -> Sequence[Entry]:
        bodies = [b for f in _FAMILIES for b in _dump(_GET_ROUTE, rt.ROUTE.pack(f, *[0] * 8))]
        return [rt.entry_of("route", body) for body in bodies if not rt.expires(body)]

    def route_to(self, address: str, source: str = "") -> Entry | None:
        where = ipaddress.ip_address(address)
        family, bits = (socket.AF_INET, 32) if where.version == 4 else (socket.AF_INET6, 128)
        said = [(rt.RTA_DST, where.packed)]
        if source:
            said.append((rt.RTA_SRC, ipaddress.ip_address(source).packed))
        head = rt.ROUTE.pack(family, bits, bits if source else 0, 0, 0, 0, 0, 0, _FIB_MATCH)
        try:
            bodies = list(_asked(_GET_ROUTE, 0, head + rt.packed(said)))
        except OSError as error:
            if error.errno in _NO_ROUTE:
                return None
            raise
        return rt.entry_of("route", bodies[0]) if bodies else None

    def neighbour(self, index: int, address: str) -> Entry | None:
        for entry in self.neighbours():
            one = rt.neighbour_of(entry)
            if (one.index, one.address) == (index, address):
                return entry
        return None

    def neighbours(self) -> Sequence[Entry]:
        heads = [rt.NEIGHBOUR.pack(f, 0, 0, 0, 0, flags, 0) for flags in (0, rt.NTF_PROXY) for f in _FAMILIES]
        return [rt.entry_of("neighbour", body) for head in heads for body in _dump(_GET_NEIGHBOUR, head)]

    def set_up(self, index: int, up: bool) -> None:
        _told(_NEW_LINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, index, _UP if up else 0, _UP))

    def set_carrier(self, index: int, carrier: bool) -> bool:
        # Documentation/ABI/testing/sysfs-class-net; drivers without ndo_change_carrier answer EOPNOTSUPP
        path = Path(f"/sys/class/net/{self._name(index)}/carrier")
        try:
            path.write_text("1" if carrier else "0")
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT):
                return False
            raise
        return True

    def _name(self, index: int) -> str:
        return socket.if_indextoname(index)

    def put(self, entry: Entry) -> None:
        try:
            _told(_NEW[entry.kind], _PUT[entry.kind], bytes.fromhex(entry.raw))
        except FileExistsError:
            return

    def take(self, entry: Entry) -> None:
        try:
            _told(_NEW[entry.kind] + 1, 0, bytes.fromhex(entry.raw))
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def settle(self, indexes: Sequence[int], *, carrier: bool, timeout_s: float) -> None:
        deadline = self._now() + timeout_s
        while self._now() < deadline and not (
            (not carrier or all(one.carrier for one in self.links() if one.index in indexes and one.up))
            and not any(_tentative(body, indexes) for body in _addresses())
        ):
            time.sleep(_POLL_S)


def _comes_back(entry: Entry) -> tuple[bool, bool]:
    """The kernel takes a route through a gateway only once the gateway's own network is there."""
    route = rt.route_of(entry)
    return route.kind != "local", bool(route.gateway)


def _tentative(body: bytes, indexes: Sequence[int]) -> bool:
    family, _, flags, _, index = rt.ADDRESS.unpack_from(body)
    return family == socket.AF_INET6 and index in indexes and bool(flags & _TENTATIVE)


def _addresses() -> list[bytes]:
    return _dump(_GET_ADDRESS, rt.ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))


def _nexthops() -> list[bytes]:
    with suppress(OSError):  # EOPNOTSUPP: kernels before 5.3 have no nexthop objects
        return _dump(_GET_NEXTHOP, rt.NEXTHOP.pack(0, 0, 0, 0, 0))
    return []


def _dump(message: int, body: bytes) -> list[bytes]:
    """All entries of a table at one moment: asked again where it changed meanwhile."""
    for _ in range(_TRIES):
        try:
            return list(_asked(message, _DUMP, body))
        except InterruptedError:
            continue
    return list(_asked(message, _DUMP, body, torn=True))


def _told(message: int, flags: int, body: bytes) -> None:
    for _ in _asked(message, _ACK | flags, body):
        pass


def _asked(message: int, flags: int, body: bytes, *, torn: bool = False) -> Iterator[bytes]:
    """Bodies of the kernel's answers. Raises OSError with its errno; InterruptedError where a dump is torn."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as channel:
        channel.settimeout(_ANSWER_S)
        channel.send(_HEAD.pack(_HEAD.size + len(body), message, _REQUEST | flags, 1, 0) + body)
        while True:
            data = channel.recv(_BYTES)
            while data:
                size, kind, marks, *_ = _HEAD.unpack_from(data)
                part = data[_HEAD.size : size]
                if marks & _INTERRUPTED and not torn:
                    raise InterruptedError(errno.EINTR, "the table changed while it was read")
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", part)[0]
                    if number:
                        raise OSError(number, os.strerror(number))
                    return
                yield part
                data = data[-(-size // 4) * 4 :]
            if not flags & (_DUMP | _ACK):
                return
