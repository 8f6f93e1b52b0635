"""Entries of the kernel's routing tables: reading, comparing and making the bodies of rtnetlink messages. Pure.

An entry that is put back must be the one that was there, whatever attributes it has. Libraries decode messages and
encode the attributes that they know; so the bytes are kept, as ip-route(8) `save` does, without what only tells of
a moment. Sources: rtnetlink(7), include/uapi/linux/{rtnetlink,if_addr,neighbour,nexthop}.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from node_agent.host.routing import Entry, EntryKind

ADDRESS, ROUTE, NEIGHBOUR = struct.Struct("=BBBBI"), struct.Struct("=BBBBBBBBI"), struct.Struct("=BBHiHBB")
NEXTHOP = struct.Struct("=BBBBI")
_ATTRIBUTE, _HOP, _CACHE = struct.Struct("=HH"), struct.Struct("=HBBi"), struct.Struct("=IIII")
_HEADS = {"address": ADDRESS, "route": ROUTE, "neighbour": NEIGHBOUR, "nexthop": NEXTHOP}
_TYPE_MASK = 0x3FFF

RTA_DST, RTA_SRC, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_MULTIPATH = 1, 2, 4, 5, 6, 9
RTA_CACHEINFO, RTA_TABLE, RTA_VIA, RTA_ENCAP_TYPE, RTA_ENCAP, RTA_NH_ID = 12, 15, 18, 21, 22, 30
IFA_ADDRESS, IFA_LOCAL, IFA_CACHEINFO, IFA_FLAGS, IFA_PROTO = 1, 2, 6, 8, 11
NDA_DST, NDA_LLADDR, NDA_CACHEINFO, NDA_PROBES = 1, 2, 3, 4
NHA_ID, NHA_GROUP, NHA_OIF = 1, 2, 5
_TOLD_OF_NEXTHOPS = (14, 15, 17)
"""NHA_OP_FLAGS and statistics."""

NUD_REACHABLE, NUD_STALE, NUD_NOARP, NUD_PERMANENT = 0x02, 0x04, 0x40, 0x80
NUD_KNOWN = 0xDE
"""The states in which the kernel has a link-layer address (NUD_VALID)."""
NTF_PROXY = 0x08
_ONLINK = 4
_FORGETS = (RTA_OIF, RTA_GATEWAY, RTA_MULTIPATH, RTA_VIA, RTA_ENCAP_TYPE, RTA_ENCAP)
"""What the kernel tells of a route that uses a nexthop object, and does not take back."""
_PASSING = 0x40 | 0x20 | 0x08 | 0x04
"""Of an address: tentative, deprecated, failed its check, optimistic."""
_TEMPORARY, _MANAGES_TEMPORARY = 0x01, 0x100
_FROM_ROUTER, _LINK_LOCAL = 2, 3
"""IFA_PROTO of addresses that the kernel makes: IFAPROT_KERNEL_RA, IFAPROT_KERNEL_LL."""
_BY_KERNEL, _BY_ROUTER = 2, 9
"""Who made a route: RTPROT_KERNEL, RTPROT_RA."""
MAIN_TABLE = 254
UNIVERSE, ON_LINK = 0, 253
_BOOT = 3
UNICAST, BLACKHOLE, UNREACHABLE, PROHIBIT = 1, 6, 7, 8
TYPES = {
    UNICAST: "", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", BLACKHOLE: "blackhole",
    UNREACHABLE: "unreachable", PROHIBIT: "prohibit", 9: "throw",
}  # fmt: skip

Attributes = list[tuple[int, bytes]]


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type (with its flag of nesting) and value of each attribute."""
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : size]
        data = data[-(-size // 4) * 4 :]


def packed(found: Iterable[tuple[int, bytes]]) -> bytes:
    """Attributes as the kernel wants them."""
    return b"".join(_ATTRIBUTE.pack(4 + len(v), k) + v + bytes(-len(v) % 4) for k, v in found)


@lru_cache(maxsize=4096)
def _split(entry: Entry) -> tuple[tuple[int, ...], dict[int, bytes]]:
    head = _HEADS[entry.kind]
    data = bytes.fromhex(entry.raw)
    return head.unpack_from(data), {k & _TYPE_MASK: v for k, v in attributes(data[head.size :])}


def entry_of(kind: EntryKind, body: bytes) -> Entry:
    """An entry from the body of the kernel's message, without what passes."""
    head = _HEADS[kind]
    fields, found = list(head.unpack_from(body)), list(attributes(body[head.size :]))
    if kind == "route":
        fields[8] &= _ONLINK
        found = _steady_route(found)
    elif kind == "address":
        fields[2] &= ~_PASSING & 0xFF
        found = [(k, _steady_address(k, v)) for k, v in found]
    elif kind == "neighbour":
        found = [(k, v) for k, v in found if k not in (NDA_CACHEINFO, NDA_PROBES)]
    else:  # a nexthop: its scope and its state are told, and must not be said
        fields[1], fields[4] = 0, fields[4] & _ONLINK
        found = [(k, v) for k, v in found if k & _TYPE_MASK not in _TOLD_OF_NEXTHOPS]
    return Entry(kind, (head.pack(*fields) + packed(found)).hex())


def _steady_route(found: Attributes) -> Attributes:
    by_object = any(k == RTA_NH_ID for k, _ in found)
    left_out = (RTA_CACHEINFO, *(_FORGETS if by_object else ()))
    kept = [(k, v) for k, v in found if k & _TYPE_MASK not in left_out]
    return [(k, _steady_hops(v)) if k & _TYPE_MASK == RTA_MULTIPATH else (k, v) for k, v in kept]


def _hops(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Flags, weight, interface and attributes of each hop of a multipath route."""
    while len(data) >= _HOP.size:
        size, flags, weight, index = _HOP.unpack_from(data)
        if size < _HOP.size:
            return
        yield flags, weight, index, data[_HOP.size : size]
        data = data[-(-size // 4) * 4 :]


def _steady_hops(data: bytes) -> bytes:
    return b"".join(
        _HOP.pack(_HOP.size + len(rest), flags & _ONLINK, weight, index) + rest
        for flags, weight, index, rest in _hops(data)
    )


def _steady_address(kind: int, value: bytes) -> bytes:
    if kind == IFA_FLAGS:
        return struct.pack("=I", struct.unpack("=I", value)[0] & ~_PASSING)
    if kind == IFA_CACHEINFO:  # preferred, valid; then when it was made and changed
        return _CACHE.pack(*_CACHE.unpack(value)[:2], 0, 0)
    return value


def identity(entry: Entry) -> Entry:
    """The entry without the lifetimes of an address, which run: for comparing."""
    if entry.kind != "address":
        return entry
    data = bytes.fromhex(entry.raw)
    found = [(k, v) for k, v in attributes(data[ADDRESS.size :]) if k != IFA_CACHEINFO]
    return Entry("address", (data[: ADDRESS.size] + packed(found)).hex())


def without_numbers(entry: Entry) -> Entry:
    """The entry without the numbers of interfaces: a card that was unplugged and plugged in again has another."""
    head = _HEADS[entry.kind]
    data = bytes.fromhex(identity(entry).raw)
    fields, found = list(head.unpack_from(data)), attributes(data[head.size :])
    if entry.kind in ("address", "neighbour"):
        fields[4 if entry.kind == "address" else 3] = 0
        return Entry(entry.kind, (head.pack(*fields) + packed(found)).hex())
    out = NHA_OIF if entry.kind == "nexthop" else RTA_OIF
    kept = [(k, v) for k, v in found if k & _TYPE_MASK != out]
    kept = [(k, _without_numbers(v)) if k & _TYPE_MASK == RTA_MULTIPATH else (k, v) for k, v in kept]
    return Entry(entry.kind, (head.pack(*fields) + packed(kept)).hex())


def _without_numbers(data: bytes) -> bytes:
    return b"".join(
        _HOP.pack(_HOP.size + len(rest), flags, weight, 0) + rest for flags, weight, _, rest in _hops(data)
    )


def expires(body: bytes) -> bool:
    """Whether a route of the kernel's has a time after which it goes, as those that routers advertise."""
    found = dict(attributes(body[ROUTE.size :])).get(RTA_CACHEINFO, b"")
    return len(found) >= 12 and struct.unpack_from("=i", found, 8)[0] != 0


def learned(entry: Entry) -> bool:
    """Whether routers advertised it: the kernel asks them again when the interface comes up."""
    fields, found = _split(entry)
    if entry.kind == "route":
        return fields[5] == _BY_ROUTER
    if entry.kind == "address" and fields[0] == socket.AF_INET6:
        flags = _flags(fields, found)
        return bool(flags & (_TEMPORARY | _MANAGES_TEMPORARY)) or found.get(IFA_PROTO) == bytes((_FROM_ROUTER,))
    return False


def by_kernel(entry: Entry) -> bool:
    """Whether the kernel makes it by itself once there is a carrier."""
    fields, found = _split(entry)
    if entry.kind == "route":
        return fields[5] == _BY_KERNEL
    return entry.kind == "address" and found.get(IFA_PROTO) == bytes((_LINK_LOCAL,))


def never_by_hand(entry: Entry) -> bool:
    """Whether only the kernel can make it as it was: IPv6 routes to its own addresses have metric 0."""
    fields, _ = _split(entry)
    return entry.kind == "route" and fields[0] == socket.AF_INET6 and by_kernel(entry)


def _flags(fields: tuple[int, ...], found: dict[int, bytes]) -> int:
    return struct.unpack("=I", found[IFA_FLAGS])[0] if IFA_FLAGS in found else fields[2]


def address_of(entry: Entry) -> str:
    """The address itself of an entry of addresses."""
    found = _split(entry)[1]
    data = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS, b"")
    return str(ipaddress.ip_address(data)) if data else ""


def prefix_of(entry: Entry) -> int:
    """The length of the prefix of an address."""
    return _split(entry)[0][1]


def nexthop_of(entry: Entry) -> int:
    """The number of a nexthop object, or of the one that a route uses; 0: none."""
    found = _split(entry)[1].get(NHA_ID if entry.kind == "nexthop" else RTA_NH_ID)
    return struct.unpack("=I", found)[0] if found else 0


def members_of(entry: Entry) -> tuple[int, ...]:
    """The numbers of the nexthop objects of a group."""
    data = _split(entry)[1].get(NHA_GROUP, b"")
    return tuple(struct.unpack_from("=I", data, at)[0] for at in range(0, len(data), 8))


def interfaces_of(entry: Entry) -> tuple[int, ...]:
    """The numbers of the interfaces that an entry names."""
    fields, found = _split(entry)
    if entry.kind == "address":
        return (fields[4],)
    if entry.kind == "neighbour":
        return (fields[3],)
    out = found.get(NHA_OIF if entry.kind == "nexthop" else RTA_OIF)
    single = struct.unpack("=I", out) if out else ()
    return (*single, *(index for *_, index, _ in _hops(found.get(RTA_MULTIPATH, b""))))


@dataclass(frozen=True)
class Route:
    """What a route says, for people and for choosing. `destination` is a network; `gateway` may be empty."""

    destination: str
    table: int
    priority: int
    tos: int
    kind: str
    scope: int
    gateway: str
    index: int

    @property
    def place(self) -> tuple[str, int, int, int]:
        """What the kernel tells routes apart by."""
        return self.destination, self.table, self.priority, self.tos


def route_of(entry: Entry) -> Route:
    """A route in words."""
    fields, found = _split(entry)
    size = 4 if fields[0] == socket.AF_INET else 16
    where = ipaddress.ip_address(found.get(RTA_DST, bytes(size))[:size])
    number = {k: struct.unpack("=I", found[k])[0] for k in (RTA_TABLE, RTA_PRIORITY) if k in found}
    gateway = found.get(RTA_GATEWAY)
    if gateway is None and RTA_VIA in found:
        gateway = found[RTA_VIA][2:]
    indexes = interfaces_of(entry)
    return Route(
        destination=f"{where}/{fields[1]}", table=number.get(RTA_TABLE, fields[4]),
        priority=number.get(RTA_PRIORITY, 0), tos=fields[3], kind=TYPES.get(fields[7], str(fields[7])),
        scope=fields[6], gateway=str(ipaddress.ip_address(gateway)) if gateway else "",
        index=indexes[0] if indexes else 0,
    )  # fmt: skip


def make_route(
    destination: str, *, kind: int = UNICAST, table: int = MAIN_TABLE, priority: int = 0, gateway: str = "",
    index: int = 0,
) -> Entry:  # fmt: skip
    """A route. A gateway need not be reachable (onlink): the kernel shall take a wrong one, too."""
    net = ipaddress.ip_network(destination)
    family = socket.AF_INET if net.version == 4 else socket.AF_INET6
    found: Attributes = [(RTA_TABLE, struct.pack("=I", table))]
    if net.prefixlen:
        found.append((RTA_DST, net.network_address.packed))
    if priority:
        found.append((RTA_PRIORITY, struct.pack("=I", priority)))
    if gateway:
        found.append((RTA_GATEWAY, ipaddress.ip_address(gateway).packed))
    if index:
        found.append((RTA_OIF, struct.pack("=I", index)))
    scope = UNIVERSE if gateway or kind != UNICAST or net.version == 6 else ON_LINK
    head = ROUTE.pack(
        family, net.prefixlen, 0, 0, table if table < 256 else 0, _BOOT, scope, kind, _ONLINK if gateway else 0
    )
    return Entry("route", (head + packed(found)).hex())


@dataclass(frozen=True)
class Neighbour:
    """What a neighbour entry says. `mac` is empty where the kernel does not know it."""

    index: int
    address: str
    mac: str
    state: int


def neighbour_of(entry: Entry) -> Neighbour:
    """A neighbour entry in words."""
    fields, found = _split(entry)
    address = str(ipaddress.ip_address(found[NDA_DST])) if NDA_DST in found else ""
    mac = found.get(NDA_LLADDR, b"") if fields[4] & NUD_KNOWN else b""
    return Neighbour(fields[3], address, mac.hex(":"), fields[4])


def by_hand(entry: Entry) -> bool:
    """Whether somebody made a neighbour entry: a permanent one, or one that the node answers for (proxy)."""
    *_, state, flags, _ = NEIGHBOUR.unpack_from(bytes.fromhex(entry.raw))
    return bool(state & NUD_PERMANENT or flags & NTF_PROXY)


def make_neighbour(index: int, address: str, mac: str, state: int) -> Entry:
    """A neighbour entry."""
    where = ipaddress.ip_address(address)
    family = socket.AF_INET if where.version == 4 else socket.AF_INET6
    found = [(NDA_DST, where.packed), (NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))]
    return Entry("neighbour", (NEIGHBOUR.pack(family, 0, 0, index, state, 0, UNICAST) + packed(found)).hex())


def with_state(entry: Entry, state: int) -> Entry:
    """A neighbour entry in another state."""
    data = bytes.fromhex(entry.raw)
    *head, _, flags, kind = NEIGHBOUR.unpack_from(data)
    return Entry("neighbour", (NEIGHBOUR.pack(*head, state, flags, kind) + data[NEIGHBOUR.size :]).hex())


def item_of(entry: Entry, names: Mapping[int, str]) -> tuple[str, str]:
    """What residue compares it as: a category and an item. `names` are those of the interfaces, by number."""
    where = ", ".join(dict.fromkeys(names.get(i, str(i)) for i in interfaces_of(entry)))
    if entry.kind == "route":
        route = route_of(entry)
        return "route", f"{route.destination} table {route.table}"
    if entry.kind == "neighbour":
        return "neighbour", f"{neighbour_of(entry).address} dev {where}"
    return entry.kind, f"{shown(entry).partition(' ')[2]} dev {where}"


def shown(entry: Entry) -> str:
    """One line for people."""
    fields, _ = _split(entry)
    if entry.kind == "address":
        return f"address {address_of(entry)}/{fields[1]}"
    if entry.kind == "neighbour":
        one = neighbour_of(entry)
        return f"neighbour {one.address} {one.mac or 'proxy'}"
    if entry.kind == "nexthop":
        return f"nexthop {nexthop_of(entry)}"
    route = route_of(entry)
    words = (route.kind, route.destination, f"via {route.gateway}" if route.gateway else "",
             f"metric {route.priority}" if route.priority else "",
             f"table {route.table}" if route.table != MAIN_TABLE else "")  # fmt: skip
    return "route " + " ".join(word for word in words if word)
