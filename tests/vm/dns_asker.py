"""Asks a name server directly, as a program does that has a resolver of its own. Run as a script.

Arguments: triples SERVER PROTOCOL NAME; "A" or "AAAA" may follow a name after a slash. Prints a line for each: the
answer's code and addresses, "timeout" or "refused".
"""

from __future__ import annotations

import socket
import struct
import sys

_TYPES = {"A": 1, "AAAA": 28}
_TIMEOUT_S = 3.0


def ask(server: str, protocol: str, name: str, kind: str) -> str:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    labels = b"".join(bytes((len(one),)) + one.encode() for one in name.split("."))
    query = struct.pack("!HHHHHH", 4711, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", _TYPES[kind], 1)
    stream = protocol == "tcp"
    with socket.socket(family, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as sock:
        sock.settimeout(_TIMEOUT_S)
        try:
            sock.connect((server, 53))
            sock.sendall((struct.pack("!H", len(query)) if stream else b"") + query)
            if stream:
                length = sock.recv(2, socket.MSG_WAITALL)
                said = sock.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            else:
                said = sock.recv(4096)
        except TimeoutError:
            return "timeout"
        except ConnectionRefusedError:
            return "refused"
    number, flags, _, answers = struct.unpack_from("!HHHH", said)
    assert number == 4711
    place, found = len(query), []
    for _ in range(answers):
        kind_of, _, _, size = struct.unpack_from("!HHIH", said, place + 2)
        data = said[place + 12 : place + 12 + size]
        if kind_of in _TYPES.values():
            found.append(socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, data))
        place += 12 + size
    return " ".join((str(flags & 15), *found))


if __name__ == "__main__":
    words = sys.argv[1:]
    for server, protocol, wanted in zip(words[::3], words[1::3], words[2::3], strict=True):
        name, _, kind = wanted.partition("/")
        print(ask(server, protocol, name, kind or "A"), flush=True)
