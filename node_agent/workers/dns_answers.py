"""Answers of the domain name system, spoiled: a pure function of the message. Source: RFC 1035, 3597, 6891.

A spoiled answer is as long as it was, so that it can be put in its place in a stream, too: what is taken out is
covered by one additional record of a private type that everybody skips.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Answer = Literal["nxdomain", "servfail", "timeout", "wrong"]

A, AAAA, OPT = 1, 28, 41
_RCODES = {"nxdomain": 3, "servfail": 2}
_HEADER = struct.Struct("!HHHHHH")
_RECORD = struct.Struct("!HHIH")
_RESPONSE, _TRUNCATED, _AUTHENTIC, _RCODE = 0x8000, 0x0200, 0x0020, 0x000F
_FILLER_TYPE = 0xFF00
"""The first of the private types (RFC 6895)."""
_FILLER = 1 + _RECORD.size
_IN = 1
_SHORT_S = 1
"""How long a wrong address may be remembered: caches that nobody can flush have to forget it, too."""


@dataclass(frozen=True)
class Spoiling:
    """Which answers, and what becomes of them.

    `names` are in lower case; "*.a.b" is a.b and everything below, "*" all. `types` are numbers of record types;
    empty: all. `v4` and `v6` are the wrong addresses.
    """

    names: tuple[str, ...]
    answer: Answer
    types: tuple[int, ...] = ()
    v4: str = "192.0.2.1"
    v6: str = "2001:db8::1"

    def fits(self, name: str, kind: int) -> bool:
        """Whether a question is one of those."""
        if self.types and kind not in self.types:
            return False
        return any(
            one in ("*", name) or (one.startswith("*.") and (name == one[2:] or name.endswith(one[1:])))
            for one in self.names
        )


@dataclass(frozen=True)
class Question:
    """The question of a message: its name in lower case, its type, and where the records begin."""

    name: str
    kind: int
    end: int


def question(message: bytes) -> Question | None:
    """The one question of an answer; None where it is no answer, or has not exactly one whole question."""
    if len(message) < _HEADER.size:
        return None
    _, flags, questions, *_ = _HEADER.unpack_from(message)
    if not flags & _RESPONSE or questions != 1:
        return None
    labels, place = [], _HEADER.size
    while place < len(message) and (size := message[place]):
        if size > 63 or place + 1 + size > len(message):
            return None
        labels.append(message[place + 1 : place + 1 + size].decode("latin-1").lower())
        place += 1 + size
    if place + 5 > len(message):
        return None
    kind = int.from_bytes(message[place + 1 : place + 3], "big")
    return Question(".".join(labels), kind, place + 5)


def spoil(message: bytes, wanted: Spoiling) -> bytes | None:
    """The answer that arrives instead, as long as the true one; empty where none arrives; None: not one of those.

    A wrong address needs a true one: an answer without addresses stays as it is. `message` may lack its end.
    """
    asked = question(message)
    if asked is None or not wanted.fits(asked.name, asked.kind):
        return None
    if wanted.answer == "timeout":
        return b""
    if wanted.answer == "wrong":
        return _with_wrong_addresses(message, asked, wanted)
    return _without_records(message, asked, _RCODES[wanted.answer])


def _without_records(message: bytes, asked: Question, rcode: int) -> bytes:
    number, flags, *_ = _HEADER.unpack_from(message)
    flags = flags & ~(_TRUNCATED | _AUTHENTIC | _RCODE) | rcode
    rest = len(message) - asked.end
    kept = b""
    for record in _records(message, asked):
        if record.kind == OPT and rest - (record.end - record.start) not in range(1, _FILLER):
            kept = message[record.start : record.end]
    room = rest - len(kept)
    filler = b""
    if room >= _FILLER:
        filler = b"\0" + _RECORD.pack(_FILLER_TYPE, _IN, 0, room - _FILLER) + bytes(room - _FILLER)
    more = bool(kept) + bool(filler)
    body = (message[_HEADER.size : asked.end] + filler + kept).ljust(len(message) - _HEADER.size, b"\0")
    return _HEADER.pack(number, flags, 1, 0, 0, more) + body


def _with_wrong_addresses(message: bytes, asked: Question, wanted: Spoiling) -> bytes | None:
    changed = bytearray(message)
    spoiled = False
    addresses = {A: ipaddress.IPv4Address(wanted.v4).packed, AAAA: ipaddress.IPv6Address(wanted.v6).packed}
    answers = _HEADER.unpack_from(message)[3]
    for record in _records(message, asked, answers):
        address = addresses.get(record.kind)
        if address is not None and record.end - record.data == len(address):
            changed[record.data : record.end] = address
            changed[record.data - 6 : record.data - 2] = _SHORT_S.to_bytes(4, "big")
            spoiled = True
    return bytes(changed) if spoiled else None


@dataclass(frozen=True)
class _Record:
    kind: int
    start: int
    data: int
    end: int


def _records(message: bytes, asked: Question, count: int | None = None) -> Iterator[_Record]:
    """The first `count` records that are whole; None: all."""
    if count is None:
        count = sum(_HEADER.unpack_from(message)[3:])
    place = asked.end
    for _ in range(count):
        start = place
        while place < len(message) and message[place]:
            if message[place] >= 0xC0:  # a pointer ends a name
                place += 1
                break
            place += 1 + message[place]
        place += 1
        if place + _RECORD.size > len(message):
            return
        kind, _, _, size = _RECORD.unpack_from(message, place)
        data = place + _RECORD.size
        place = data + size
        if place > len(message):
            return
        yield _Record(kind, start, data, place)
