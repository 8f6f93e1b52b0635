"""Interfaces, addresses, routes and neighbours of the simulated machine, in the kernel's own messages."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from node_agent.host import rtmessages as rt
from node_agent.host.routing import Entry, Link

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

LO, MGMT, LAN = 1, 2, 3
PEER, PEER_MAC = "10.77.0.2", "52:54:00:67:02:02"


def address(index: int, text: str, proto: int = 0) -> Entry:
    """An address of an interface."""
    where = ipaddress.ip_interface(text)
    family = socket.AF_INET if where.version == 4 else socket.AF_INET6
    kind = rt.IFA_LOCAL if where.version == 4 else rt.IFA_ADDRESS
    said = [(kind, where.ip.packed)] + ([(rt.IFA_PROTO, bytes((proto,)))] if proto else [])
    head = rt.ADDRESS.pack(family, where.network.prefixlen, 0, 0, index)
    return Entry("address", (head + rt.packed(said)).hex())


def by_kernel(entry: Entry) -> Entry:
    """A route as if the kernel had made it."""
    data = bytearray.fromhex(entry.raw)
    data[5] = 2
    return Entry("route", data.hex())


def _entries() -> set[Entry]:
    return {
        address(MGMT, "10.0.2.15/24"),
        address(LAN, "10.77.0.1/24"),
        address(LAN, "fd00:77::1/64"),
        address(LAN, "fe80::1/64", 3),
        by_kernel(rt.make_route("10.0.2.0/24", index=MGMT)),
        by_kernel(rt.make_route("10.77.0.0/24", index=LAN)),
        by_kernel(rt.make_route("fd00:77::/64", index=LAN, priority=256)),
        rt.make_route("0.0.0.0/0", gateway="10.0.2.2", index=MGMT),
        rt.make_route("10.9.0.0/16", gateway=PEER, index=LAN, priority=77),
        rt.make_neighbour(LAN, PEER, PEER_MAC, rt.NUD_STALE),
        rt.make_neighbour(LAN, "10.77.0.50", "02:00:00:00:00:50", rt.NUD_PERMANENT),
        rt.make_neighbour(MGMT, "10.0.2.2", "52:55:0a:00:02:02", rt.NUD_REACHABLE),
    }


@dataclass
class SimNet:
    """What the kernel knows."""

    links: dict[int, Link] = field(
        default_factory=lambda: {
            LO: Link(LO, "lo", up=True, carrier=True, resolves=False, loopback=True),
            MGMT: Link(MGMT, "mgmt", up=True, carrier=True, mac="52:54:00:67:01:01"),
            LAN: Link(LAN, "lan", up=True, carrier=True, mac="52:54:00:67:02:01"),
        }
    )
    entries: set[Entry] = field(default_factory=_entries)
    carrier_switch: bool = False

    def goes_with(self, index: int) -> set[Entry]:
        """What an interface loses when it is set down."""
        mine = {e for e in self.entries if index in rt.interfaces_of(e)}
        return {e for e in mine if e.kind != "address" or ":" in rt.address_of(e)}


def texts() -> dict[str, str]:
    """Files that show connections of the agent's and interfaces."""
    head = "  sl  local_address rem_address   st\n"
    return {
        "/proc/net/tcp": f"{head}   0: 0F02000A:1D13 0202000A:C350 01\n   1: 01004D0A:1538 02004D0A:D431 01\n",
        "/proc/net/tcp6": head,
        "/proc/net/snmp": "Ip: Forwarding OutNoRoutes\nIp: 2 0\n",
        "/proc/net/snmp6": "Ip6OutNoRoutes 0\n",
        **{f"/sys/class/net/lan/{name}": "0" for name in ("carrier_down_count", "carrier_changes")},
    }


class SimulatedRouting:
    """`host.routing` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    @property
    def _net(self) -> SimNet:
        self._h.alive()
        return self._h.kernel.net

    def links(self) -> Sequence[Link]:
        return list(self._net.links.values())

    def attached(self, indexes: Sequence[int]) -> Sequence[Entry]:
        mine = [e for e in self._net.entries if set(indexes) & set(rt.interfaces_of(e))]
        kept = [e for e in mine if e.kind != "neighbour" or rt.neighbour_of(e).state == rt.NUD_PERMANENT]
        return sorted(kept, key=lambda e: (e.kind, e.raw))

    def addresses(self) -> Sequence[Entry]:
        return sorted((e for e in self._net.entries if e.kind == "address"), key=lambda e: e.raw)

    def routes(self) -> Sequence[Entry]:
        return sorted((e for e in self._net.entries if e.kind == "route"), key=lambda e: e.raw)

    def route_to(self, address: str, source: str = "") -> Entry | None:
        where = ipaddress.ip_address(address)
        fits = [e for e in self.routes() if where in ipaddress.ip_network(rt.route_of(e).destination)]
        best = sorted(
            fits, key=lambda e: (-int(rt.route_of(e).destination.split("/")[1]), rt.route_of(e).priority)
        )
        return best[0] if best and not rt.route_of(best[0]).kind else None

    def neighbours(self) -> Sequence[Entry]:
        return sorted((e for e in self._net.entries if e.kind == "neighbour"), key=lambda e: e.raw)

    def neighbour(self, index: int, address: str) -> Entry | None:
        for entry in self._net.entries:
            if entry.kind == "neighbour" and _who(entry) == (index, address):
                return entry
        return None

    def set_up(self, index: int, up: bool) -> None:
        self._h.change()
        net = self._net
        if index not in net.links:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        net.links[index] = replace(net.links[index], up=up, carrier=up)
        if up:
            net.entries |= {e for e in _entries() if index in rt.interfaces_of(e) and _comes_by_itself(e)}
        else:
            net.entries -= net.goes_with(index)

    def set_carrier(self, index: int, carrier: bool) -> bool:
        self._h.change()
        if self._net.carrier_switch:
            self._net.links[index] = replace(self._net.links[index], carrier=carrier)
        return self._net.carrier_switch

    def put(self, entry: Entry) -> None:
        self._h.change()
        for index in rt.interfaces_of(entry):
            link = self._net.links.get(index)
            if link is None or not (link.up or entry.kind == "address"):
                raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        if entry.kind == "neighbour":
            one = rt.neighbour_of(entry)
            known = self.neighbour(one.index, one.address)
            self._net.entries -= {known} if known else set()
        self._net.entries.add(entry)

    def take(self, entry: Entry) -> None:
        self._h.change()
        if entry.kind == "neighbour":
            one = rt.neighbour_of(entry)
            known = self.neighbour(one.index, one.address)
            self._net.entries -= {known} if known else set()
        self._net.entries.discard(entry)

    def settle(self, indexes: Sequence[int], *, carrier: bool, timeout_s: float) -> None:
        self._h.alive()


def number(raw: bytes) -> int:
    """A 32-bit number of a message."""
    return int(struct.unpack("=I", raw)[0])


def _comes_by_itself(entry: Entry) -> bool:
    """What the kernel makes, and the neighbours that traffic makes known again."""
    if entry.kind == "neighbour":
        return rt.neighbour_of(entry).state != rt.NUD_PERMANENT
    return rt.by_kernel(entry)


def _who(entry: Entry) -> tuple[int, str]:
    one = rt.neighbour_of(entry)
    return one.index, one.address
