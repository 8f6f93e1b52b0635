"""Talking to the kernel over netlink: requests, answers, attributes. Source: netlink(7), nfnetlink.h."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

SOCK_DIAG, NETFILTER = 4, 12
ACK, ROOT_DUMP, CREATE, EXCL = 0x4, 0x300, 0x400, 0x200
REQUEST = 0x1
HEAD = struct.Struct("=IHHII")
NFGEN = struct.Struct("!BBH")
_ATTRIBUTE = struct.Struct("=HH")
_NESTED, _TYPE = 0x8000, 0x3FFF
_ERROR, _DONE = 2, 3
_BYTES = 1 << 18
_ANSWER_S = 5.0


class Channel:
    """A netlink socket for one family. Each request is answered before the next is sent."""

    def __init__(self, family: int, timeout_s: float = _ANSWER_S) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
        self.socket.bind((0, 0))
        self.socket.settimeout(timeout_s)
        self._sequence = 0

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, kind: int, body: bytes, flags: int = 0) -> Iterator[bytes]:
        """The bodies of the answers to one request. Raises OSError with the kernel's errno, or TimeoutError."""
        self._sequence += 1
        self.socket.send(message(kind, body, flags, self._sequence))
        last = not flags & ROOT_DUMP
        while True:
            for answer, sequence, part in messages(self.socket.recv(_BYTES)):
                if sequence != self._sequence:
                    continue
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    raise_error(part)
                    return
                yield part
                if last and not flags & ACK:
                    return

    def change(self, requests: Sequence[tuple[int, bytes, int]]) -> list[int]:
        """Send several changes at once; the errno of each, 0 where it went well. Keep them few (some dozens).

        Only the last is acknowledged: the kernel does them in order, and tells of each that fails.
        """
        first = self._sequence + 1
        self._sequence += len(requests)
        last = len(requests) - 1
        data = (
            message(kind, body, flags | (ACK if n == last else 0), first + n)
            for n, (kind, body, flags) in enumerate(requests)
        )
        self.socket.send(b"".join(data))
        found = [0] * len(requests)
        while True:
            for answer, sequence, part in messages(self.socket.recv(_BYTES)):
                if answer == _ERROR and first <= sequence < first + len(requests):
                    found[sequence - first] = -int(struct.unpack_from("=i", part)[0])
                    if sequence == first + last:
                        return found


def message(kind: int, body: bytes, flags: int, sequence: int) -> bytes:
    """A request with its header, padded."""
    whole = HEAD.pack(HEAD.size + len(body), kind, REQUEST | flags, sequence, 0) + body
    return whole + bytes(-len(whole) % 4)


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, sequence number and body of each message of a datagram."""
    while len(data) >= HEAD.size:
        size, kind, _, sequence, _ = HEAD.unpack_from(data)
        if size < HEAD.size:
            return
        yield kind, sequence, data[HEAD.size : size]
        data = data[-(-size // 4) * 4 :]


def raise_error(body: bytes) -> None:
    """Raise what an error message says; nothing where it is an acknowledgement."""
    number = -int(struct.unpack_from("=i", body)[0])
    if number:
        raise OSError(number, os.strerror(number), errno.errorcode.get(number, ""))


def attribute(kind: int, value: bytes, *, nested: bool = False) -> bytes:
    """One attribute, padded."""
    whole = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind | (_NESTED if nested else 0)) + value
    return whole + bytes(-len(whole) % 4)


def nest(kind: int, *parts: bytes) -> bytes:
    """An attribute made of attributes."""
    return attribute(kind, b"".join(parts), nested=True)


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes in a body, by kind; of a kind that comes twice the last."""
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        if size < _ATTRIBUTE.size:
            break
        found[kind & _TYPE] = data[_ATTRIBUTE.size : size]
        data = data[-(-size // 4) * 4 :]
    return found
