"""Entries of the connection tracking table, made, counted and deleted. Source: linux/netfilter/
nfnetlink_conntrack.h and nf_conntrack_common.h.

Ours are UDP from addresses of 240.0.0.0/8, which nobody has (RFC 1112), so that they are known without a mark.
They are *assured*: the kernel does not throw them out early when the table is full.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from node_agent.workers.netlink import (
    CREATE,
    EXCL,
    NETFILTER,
    NFGEN,
    ROOT_DUMP,
    Channel,
    attribute,
    nest,
)

COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
MOST = "/proc/sys/net/netfilter/nf_conntrack_max"
_SUBSYSTEM = 1 << 8
_NEW, _GET, _DELETE = _SUBSYSTEM, _SUBSYSTEM | 1, _SUBSYSTEM | 2
_ORIGINAL, _REPLY, _STATUS, _TIMEOUT = 1, 2, 3, 7
_IP, _PROTOCOL, _SOURCE4, _TARGET4 = 1, 2, 1, 2
_NUMBER, _SOURCE_PORT, _TARGET_PORT = 1, 2, 3
_SEEN_REPLY, _ASSURED, _CONFIRMED = 1 << 1, 1 << 2, 1 << 3
_HEAD = NFGEN.pack(socket.AF_INET, 0, 0)
_FIRST, _SINK = 240 << 24, bytes((240, 255, 255, 255))
_OUR_SOURCE = attribute(_SOURCE4, bytes((240, 0, 0, 0)))[:5]
_PORT = struct.pack("!H", 9)
_ROOM = 1 << 24
AT_ONCE = 64
"""Entries that are made or deleted by one message to the kernel."""


def _tuple(kind: int, source: bytes, target: bytes) -> bytes:
    ends = nest(_IP, attribute(_SOURCE4, source), attribute(_TARGET4, target))
    udp = nest(
        _PROTOCOL, attribute(_NUMBER, bytes((socket.IPPROTO_UDP,))), attribute(_SOURCE_PORT, _PORT),
        attribute(_TARGET_PORT, _PORT),
    )  # fmt: skip
    return nest(kind, ends, udp)


class Table:
    """The table of this network namespace."""

    def __init__(self) -> None:
        self._channel = Channel(NETFILTER)

    def close(self) -> None:
        """Close the socket."""
        self._channel.socket.close()

    def put(self, numbers: Sequence[int], timeout_s: int, *, new: bool) -> list[int]:
        """Make some dozens of entries, or give those that are there another timeout; the errno of each."""
        flags = CREATE | EXCL if new else 0
        pattern = _entry(0, timeout_s, new)  # made once: all that differs is the address
        zero = _address(0)
        return self._channel.change([(_NEW, pattern.replace(zero, _address(n)), flags) for n in numbers])

    def ours(self) -> Iterator[bytes]:
        """The source address of each entry that is ours."""
        for body in self._channel.ask(_GET, _HEAD, ROOT_DUMP):
            place = body.find(_OUR_SOURCE)  # the table may be large: no time to take each entry apart
            if place >= 0:
                yield body[place + 4 : place + 8]

    def clear(self) -> int:
        """Delete all that are ours; how many there were. Raises OSError."""
        there = list(self.ours())
        for start in range(0, len(there), AT_ONCE):
            requests = [
                (_DELETE, _HEAD + _tuple(_ORIGINAL, one, _SINK), 0) for one in there[start : start + AT_ONCE]
            ]
            for number in self._channel.change(requests):
                if number not in (0, errno.ENOENT):
                    raise OSError(number, "an entry of the connection table cannot be deleted")
        return len(there)


def _address(number: int) -> bytes:
    return (_FIRST + number % _ROOM).to_bytes(4, "big")


def _entry(number: int, timeout_s: int, new: bool) -> bytes:
    source = _address(number)
    body = _HEAD + _tuple(_ORIGINAL, source, _SINK)
    if new:
        body += _tuple(_REPLY, _SINK, source) + attribute(
            _STATUS, struct.pack("!I", _SEEN_REPLY | _ASSURED | _CONFIRMED)
        )
    return body + attribute(_TIMEOUT, struct.pack("!I", timeout_s))


def count() -> int:
    """How many entries the table has."""
    return int(Path(COUNT).read_text())


def most() -> int:
    """How many it may have."""
    return int(Path(MOST).read_text())
