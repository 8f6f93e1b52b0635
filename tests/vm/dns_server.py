"""A name server for tests, by UDP and TCP, IPv4 and IPv6: every name has the same two addresses. Run as a script.

Arguments: addresses to serve at. `short.` names have an A record only, and an empty answer for AAAA.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading

A, AAAA = 1, 28
FOUR, SIX = "10.77.0.200", "fd77::200"
TRUE = {A: socket.inet_pton(socket.AF_INET, FOUR), AAAA: socket.inet_pton(socket.AF_INET6, SIX)}


def answer(query: bytes) -> bytes:
    """The answer to a question, with the additional records of the question left out."""
    end = 12
    while query[end]:
        end += 1 + query[end]
    kind = struct.unpack_from("!H", query, end + 1)[0]
    data = TRUE.get(kind) if not (kind == AAAA and query[13:18].lower() == b"short") else None
    head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, int(data is not None), 0, 0)
    record = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 300, len(data)) + data if data else b""
    return head + query[12 : end + 5] + record


def udp(family: int, address: str) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            query, client = server.recvfrom(4096)
            server.sendto(answer(query), client)


def tcp(family: int, address: str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, 53))
        server.listen(16)
        while True:
            client, _ = server.accept()
            with client:
                client.settimeout(5)
                length = client.recv(2, socket.MSG_WAITALL)
                if len(length) == 2:
                    said = answer(client.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL))
                    client.sendall(struct.pack("!H", len(said)) + said)


if __name__ == "__main__":
    for where in sys.argv[1:]:
        family = socket.AF_INET6 if ":" in where else socket.AF_INET
        for serve in (udp, tcp):
            threading.Thread(target=serve, args=(family, where)).start()
