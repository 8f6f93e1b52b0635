"""Answers of the domain name system that are spoiled, as bytes; packets and streams they come in."""

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.errors import Refusal
from node_agent.fault import build_fault
from node_agent.faults.network.dns_failure import DnsFailure
from node_agent.workers.dns_answers import AAAA, A, Spoiling, question, spoil
from node_agent.workers.dns_worker import Spoiler
from node_agent.workers.packet_queue import Queued
from node_agent.workers.packets import parse, tcp_segment, with_payload

OPT = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"
ADDRESS = ipaddress.IPv4Address("10.1.2.3").packed


def name(text: str) -> bytes:
    return b"".join(bytes((len(one),)) + one.encode() for one in text.split(".")) + b"\0"


def record(kind: int, data: bytes, owner: bytes = b"\xc0\x0c") -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 300, len(data)) + data


def answer(of: str, kind: int = A, records: tuple[bytes, ...] = (record(A, ADDRESS),), opt: bool = True) -> bytes:
    head = struct.pack("!HHHHHH", 7, 0x8180, 1, len(records), 0, int(opt))
    return head + name(of) + struct.pack("!HH", kind, 1) + b"".join(records) + (OPT if opt else b"")


def counts(message: bytes) -> tuple[int, ...]:
    return struct.unpack("!HHHHHH", message[:12])


def walk(message: bytes) -> list[int]:
    """The types of all records, read as a resolver does; raises where there is anything more or less."""
    _, _, questions, *more = counts(message)
    assert questions == 1
    asked = question(message)
    assert asked is not None
    place, found = asked.end, []
    for _ in range(sum(more)):
        place += 2 if message[place] >= 0xC0 else 1
        kind, _, _, size = struct.unpack_from("!HHIH", message, place)
        found.append(kind)
        place += 10 + size
    assert place == len(message), "nothing is left over"
    return found


@pytest.mark.parametrize(
    ("chosen", "asked", "fits"),
    [
        ("db.example.com", "db.example.com", True),
        ("db.example.com", "DB.Example.COM", True),
        ("db.example.com", "a.db.example.com", False),
        ("db.example.com", "xdb.example.com", False),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", True),
        ("*.example.com", "badexample.com", False),
        ("*", "anything", True),
    ],
)
def test_names(chosen: str, asked: str, fits: bool) -> None:
    assert (spoil(answer(asked), Spoiling((chosen,), "nxdomain")) is not None) == fits


@pytest.mark.parametrize("opt", [True, False])
@pytest.mark.parametrize(("how", "rcode"), [("nxdomain", 3), ("servfail", 2)])
def test_no_records_are_left_and_the_length_is_as_it_was(how: str, rcode: int, opt: bool) -> None:
    true = answer("db.example.com", opt=opt)
    found = spoil(true, Spoiling(("db.example.com",), how))  # type: ignore[arg-type]
    assert found is not None and len(found) == len(true)
    number, flags, _, answers, authority, _ = counts(found)
    assert (number, flags & 15, answers, authority) == (7, rcode, 0, 0)
    assert walk(found) == ([0xFF00, 41] if opt else [0xFF00])


def test_an_answer_without_records() -> None:
    true = answer("db.example.com", AAAA, (), opt=False)
    found = spoil(true, Spoiling(("*",), "nxdomain"))
    assert found is not None and counts(found)[3:] == (0, 0, 0) and walk(found) == []


def test_wrong_addresses_of_both_families_and_nothing_else() -> None:
    wanted = Spoiling(("*",), "wrong", v4="192.0.2.9", v6="2001:db8::9")
    alias = record(5, name("other.example.com"))
    four = spoil(answer("db", A, (alias, record(A, ADDRESS), record(A, ADDRESS))), wanted)
    assert four is not None and four.count(ipaddress.IPv4Address("192.0.2.9").packed) == 2 and ADDRESS not in four
    assert alias in four and four.count(struct.pack("!I", 1) + b"\0\4") == 2, "and nobody remembers them for long"
    six = spoil(answer("db", AAAA, (record(AAAA, bytes(16)),)), wanted)
    assert six is not None and ipaddress.IPv6Address("2001:db8::9").packed in six
    assert spoil(answer("db", AAAA, ()), wanted) is None, "there is nothing to make wrong"


def test_only_questions_of_a_type() -> None:
    late = Spoiling(("*",), "timeout", types=(AAAA,))
    assert spoil(answer("db", AAAA), late) == b"" and spoil(answer("db", A), late) is None


def test_what_is_no_answer() -> None:
    query = bytearray(answer("db"))
    query[2] &= 0x7F
    for message in (bytes(query), b"", b"\0" * 11, answer("db")[:15], b"\xff" * 40):
        assert spoil(message, Spoiling(("*",), "nxdomain")) is None


@given(st.binary(max_size=80), st.sampled_from(["nxdomain", "servfail", "wrong", "timeout"]))
def test_nothing_that_comes_breaks_it(tail: bytes, how: str) -> None:
    for message in (tail, answer("db.example.com", records=(), opt=False)[:12] + tail,
                    struct.pack("!HHHHHH", 7, 0x8180, 1, 9, 9, 9) + name("db") + b"\0\1\0\1" + tail):  # fmt: skip
        found = spoil(message, Spoiling(("*",), how))  # type: ignore[arg-type]
        assert found is None or found == b"" or len(found) == len(message)


def udp(payload: bytes, source: str = "10.77.0.3", target: str = "10.77.0.2") -> bytes:
    """A packet made by hand, checksums left 0."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, target)
    body = struct.pack("!HHHH", 53, 40000, 8 + len(payload), 0) + payload
    if family == socket.AF_INET6:
        return struct.pack("!IHBB", 6 << 28, len(body), 17, 64) + ends + body
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, 17, 0) + ends + body


def tcp(payload: bytes) -> bytes:
    head = tcp_segment("10.77.0.3", 53, "10.77.0.2", 40000, sequence=1, urgent=0)
    return head[:2] + struct.pack("!H", len(head) + len(payload)) + head[4:] + payload


def checksum(packet: bytes) -> int:
    """What the sum over a right packet is: 0. Written again, after RFC 1071, not as the product does it."""
    found = parse(packet)
    assert found is not None
    ends = packet[12:20] if found.family == socket.AF_INET else packet[8:40]
    data = ends + struct.pack("!HH", found.protocol, len(packet) - found.transport) + packet[found.transport :]
    total = 0
    for n in range(0, len(data), 2):
        total += data[n] << 8 | (data[n + 1] if n + 1 < len(data) else 0)
    return ~(total % 0xFFFF) & 0xFFFF if total % 0xFFFF else 0


@pytest.mark.parametrize("ends", [("10.77.0.3", "10.77.0.2"), ("fd00::3", "fd00::2")])
@pytest.mark.parametrize("payload", [b"even", b"odd"])
def test_a_packet_with_another_payload_has_the_right_checksum(ends: tuple[str, str], payload: bytes) -> None:
    packet = parse(udp(b"x" * len(payload), *ends))
    assert packet is not None and (packet.source, packet.target) == ends and packet.source_port == 53
    made = with_payload(packet, payload)
    again = parse(made)
    assert again is not None and again.payload == payload and checksum(made) == 0


def test_a_segment_that_provokes_is_whole() -> None:
    for source, target in (("10.77.0.3", "10.77.0.2"), ("fd00::3", "fd00::2")):
        made = tcp_segment(source, 5432, target, 40000, sequence=12345, urgent=0x6766)
        found = parse(made)
        assert found is not None and (found.source, found.source_port) == (source, 5432) and found.payload == b""
        assert checksum(made) == 0


@pytest.mark.parametrize("data", [b"", b"\x45", b"\x60" * 39, b"\x45" + bytes(40), b"\x10" * 60])
def test_what_is_no_packet(data: bytes) -> None:
    assert parse(data) is None


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack("!H", len(one)) + one for one in messages)


@pytest.fixture
def spoiler() -> Spoiler:
    return Spoiler(Spoiling(("db",), "nxdomain"), ())


def judged(spoiler: Spoiler, packet: bytes) -> bytes | None:
    found = spoiler.judge(Queued(packet, 2))
    if not found:
        return found
    again = parse(found)
    assert again is not None and checksum(found) == 0
    return again.payload


def test_streams_of_answers(spoiler: Spoiler) -> None:
    bad, good = answer("db"), answer("other")
    spoiled = spoil(bad, Spoiling(("db",), "nxdomain"))
    assert spoiled is not None
    assert judged(spoiler, tcp(framed(good))) is None and judged(spoiler, tcp(b"")) is None
    assert judged(spoiler, tcp(framed(good, bad))) == framed(good, spoiled)
    assert judged(spoiler, tcp(struct.pack("!H", len(bad)))) is None, "the length in a segment of its own"
    assert judged(spoiler, tcp(bad)) == spoiled
    assert judged(spoiler, tcp(framed(bad))) == framed(spoiled), "and once more in one piece"
    assert spoiler.counters["hits"] == 3


def test_datagrams(spoiler: Spoiler) -> None:
    assert judged(spoiler, udp(answer("other"))) is None
    assert judged(spoiler, udp(answer("db"))) == spoil(answer("db"), Spoiling(("db",), "nxdomain"))
    late = Spoiler(Spoiling(("db",), "timeout"), ())
    assert (
        judged(late, udp(answer("db"))) == b"" and judged(late, tcp(framed(answer("other"), answer("db")))) == b""
    )
    assert late.counters["hits"] == 2
    second = Spoiler(Spoiling(("db",), "timeout"), (), every=3)
    assert [judged(second, udp(answer("db"))) for _ in range(5)] == [b"", None, None, b"", None]
    assert (second.counters["hits"], second.counters["fitting"]) == (2, 5)


@pytest.mark.parametrize("wrong", ["", "a b", "-x.com", "*.*.com", "x..y", "é" * 80])
def test_names_that_are_none(wrong: str) -> None:
    with pytest.raises(Refusal, match="is no name"):
        build_fault(DnsFailure, {"names": [wrong]})


def test_names_as_the_wire_has_them() -> None:
    assert build_fault(DnsFailure, {"names": ["DB.Example.com.", "bücher.example", "_srv.x"]}).names == (
        "db.example.com", "xn--bcher-kva.example", "_srv.x",
    )  # fmt: skip
