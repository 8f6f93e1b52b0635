"""IP packets with UDP or TCP in them: finding the payload, and putting another of the same length in its place."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

TCP, UDP = 6, 17
_V6_HEADER, _UDP_HEADER, _TCP_SMALLEST = 40, 8, 20
_CHECKSUM_AT = {TCP: 16, UDP: 6}


@dataclass(frozen=True)
class Packet:
    """Where things are in a packet. Addresses as text; `start` is where the payload of UDP or TCP begins."""

    data: bytes
    family: int
    protocol: int
    source: str
    source_port: int
    target: str
    target_port: int
    transport: int
    start: int

    @property
    def payload(self) -> bytes:
        """What UDP or TCP carries."""
        return self.data[self.start :]


def parse(data: bytes) -> Packet | None:
    """A whole packet of IPv4 or IPv6 without extension headers; None where it is something else."""
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        transport, protocol, end = (data[0] & 15) * 4, data[9], int.from_bytes(data[2:4], "big")
        family, ends = socket.AF_INET, (data[12:16], data[16:20])
    elif version == 6 and len(data) >= _V6_HEADER:
        transport, protocol = _V6_HEADER, data[6]
        end = _V6_HEADER + int.from_bytes(data[4:6], "big")
        family, ends = socket.AF_INET6, (data[8:24], data[24:40])
    else:
        return None
    if protocol not in _CHECKSUM_AT or end > len(data) or len(data) < transport + _UDP_HEADER:
        return None
    start = transport + _UDP_HEADER
    if protocol == TCP:
        if len(data) < transport + _TCP_SMALLEST:
            return None
        start = transport + (data[transport + 12] >> 4) * 4
    source_port, target_port = struct.unpack_from("!HH", data, transport)
    source, target = (socket.inet_ntop(family, one) for one in ends)
    return Packet(data[:end], family, protocol, source, source_port, target, target_port, transport, start)


def with_payload(packet: Packet, payload: bytes) -> bytes:
    """The packet with another payload of the same length, and the checksum that this makes."""
    assert len(payload) == len(packet.payload)
    data = bytearray(packet.data[: packet.start] + payload)
    place = packet.transport + _CHECKSUM_AT[packet.protocol]
    data[place : place + 2] = b"\0\0"
    segment = bytes(data[packet.transport :])
    ends = packet.data[12:20] if packet.family == socket.AF_INET else packet.data[8:40]
    found = _sum(ends + struct.pack("!HI", packet.protocol, len(segment)) + segment)
    if packet.protocol == UDP and found == 0:
        found = 0xFFFF  # 0 would say that there is no checksum (RFC 768)
    data[place : place + 2] = found.to_bytes(2, "big")
    return bytes(data)


def _sum(data: bytes) -> int:
    """The ones' complement of the ones' complement sum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp_segment(
    source: str, source_port: int, target: str, target_port: int, *, sequence: int, urgent: int
) -> bytes:
    """A whole IP packet with an empty TCP segment that only has the flag ACK, whatever its numbers."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, target)
    tcp = struct.pack("!HHIIBBHHH", source_port, target_port, sequence, 0, 5 << 4, 0x10, 1024, 0, urgent)
    checksum = _sum(ends + struct.pack("!HI", TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + checksum.to_bytes(2, "big") + tcp[18:]
    if family == socket.AF_INET6:
        return struct.pack("!IHBB", 6 << 28, len(tcp), TCP, 64) + ends + tcp
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, TCP, 0) + ends
    return head[:10] + _sum(head).to_bytes(2, "big") + head[12:] + tcp
