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
    attributes,
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
_PORT = struct.pack("!H", 9)
_ROOM = 1 << 24
_AT_ONCE = 64


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
        """Make entries, or give those that are there another timeout; the errno of each."""
        found: list[int] = []
        for start in range(0, len(numbers), _AT_ONCE):
            part = numbers[start : start + _AT_ONCE]
            flags = CREATE | EXCL if new else 0
            found += self._channel.change([(_NEW, _entry(n, timeout_s, new), flags) for n in part])
        return found

    def ours(self) -> Iterator[bytes]:
        """The source address of each entry that is ours."""
        first = _FIRST >> 24
        for body in self._channel.ask(_GET, _HEAD, ROOT_DUMP):
            original = attributes(attributes(body[NFGEN.size :]).get(_ORIGINAL, b""))
            source = attributes(original.get(_IP, b"")).get(_SOURCE4, b"")
            if source[:1] == bytes((first,)):
                yield source

    def clear(self) -> int:
        """Delete all that are ours; how many there were. Raises OSError."""
        there = list(self.ours())
        for start in range(0, len(there), _AT_ONCE):
            requests = [
                (_DELETE, _HEAD + _tuple(_ORIGINAL, one, _SINK), 0) for one in there[start : start + _AT_ONCE]
            ]
            for number in self._channel.change(requests):
                if number not in (0, errno.ENOENT):
                    raise OSError(number, "an entry of the connection table cannot be deleted")
        return len(there)


def _entry(number: int, timeout_s: int, new: bool) -> bytes:
    source = (_FIRST + number % _ROOM).to_bytes(4, "big")
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
