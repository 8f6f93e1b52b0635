"""Sockets as the kernel tells of them. Source: sock_diag(7), linux/inet_diag.h."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from node_agent.workers.netlink import ROOT_DUMP, SOCK_DIAG, Channel, attributes

_BY_FAMILY = 20
_REQUEST, _ID = struct.Struct("=BBBxI"), struct.Struct("!HH16s16s")
_ANSWER = 72
_CGROUP = 21
_ANY_COOKIE = b"\xff" * 8
TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK = 1, 4, 5, 8, 9
CONNECTED = tuple(1 << state for state in (ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK))


@dataclass(frozen=True)
class Connection:
    """The two ends of a socket as text, and the number of its control group (0: not told)."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    cgroup: int


def connections() -> Iterator[Connection]:
    """The TCP connections of this network namespace that are established, or being closed by one end."""
    with Channel(SOCK_DIAG) as channel:
        for family in (socket.AF_INET, socket.AF_INET6):
            states = sum(CONNECTED)
            request = _REQUEST.pack(family, TCP, 0, states) + _ID.pack(0, 0, bytes(16), bytes(16)) + bytes(12)
            for answer in channel.ask(_BY_FAMILY, request, ROOT_DUMP):
                yield _connection(answer)


class SocketFinder:
    """Asks which socket a packet is for."""

    def __init__(self) -> None:
        self._channel = Channel(SOCK_DIAG)

    def cgroup(self, protocol: int, source: tuple[str, int], target: tuple[str, int], interface: int) -> int:
        """The number of the control group of the socket that a packet which came in is for; 0: there is none."""
        family = socket.AF_INET6 if ":" in source[0] else socket.AF_INET
        remote, local = (_packed(one[0]) for one in (source, target))
        if protocol == UDP:  # the two ends change places there, for historical reasons (net/ipv4/udp_diag.c)
            ends = _ID.pack(source[1], target[1], remote, local)
        else:
            ends = _ID.pack(target[1], source[1], local, remote)
        request = (
            _REQUEST.pack(family, protocol, 0, 0xFFFFFFFF) + ends + struct.pack("=I", interface) + _ANY_COOKIE
        )
        with suppress(OSError):
            for answer in self._channel.ask(_BY_FAMILY, request):
                return _connection(answer).cgroup
        return 0


def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed.ljust(16, b"\0")


def _connection(answer: bytes) -> Connection:
    family = answer[0]
    local_port, remote_port, local, remote = _ID.unpack_from(answer, 4)
    cgroup = attributes(answer[_ANSWER:]).get(_CGROUP, b"")
    return Connection(
        local=_text(family, local), local_port=local_port, remote=_text(family, remote), remote_port=remote_port,
        cgroup=int.from_bytes(cgroup, "little"),
    )  # fmt: skip


def _text(family: int, raw: bytes) -> str:
    """An address; IPv4 in IPv6 is IPv4, as it is on the wire."""
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[:4]))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)
