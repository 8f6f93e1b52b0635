"""TCP connections that are held, and whether they still carry anything. Run as a script.

`serve PORT…` echoes there, by IPv4 and IPv6, and prints a line for each connection that ends in an error.
`hold FIFO NAME=ADDRESS/PORT…` opens connections, prints "up", and for each line that FIFO gets a line of JSON: by
name what became of a word that was sent and should come back, "ok" or an error's name, each within seconds.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

_PATIENCE_S = 3.0


def name_of(error: OSError) -> str:
    """ETIMEDOUT also where it was our own patience that ended."""
    return errno.errorcode.get(error.errno or errno.ETIMEDOUT, str(error))


def echo(connection: socket.socket) -> None:
    port, peer = connection.getsockname()[1], connection.getpeername()[0]
    try:
        while data := connection.recv(4096):
            connection.sendall(data)
    except OSError as error:
        print(f"{name_of(error)} {port} {peer}", flush=True)


def serve(port: int) -> None:
    with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def exchange(connection: socket.socket) -> str:
    word = uuid.uuid4().bytes
    try:
        connection.sendall(word)
        received = b""
        while not received.endswith(word):  # what was late from an exchange before comes first
            data = connection.recv(4096)
            if not data:
                return "EOF"
            received += data
    except OSError as error:
        return name_of(error)
    return "ok"


def hold(fifo: str, sessions: dict[str, tuple[str, int]]) -> None:
    held = {name: socket.create_connection(end, _PATIENCE_S) for name, end in sessions.items()}
    assert all(exchange(one) == "ok" for one in held.values())
    print("up", flush=True)
    # Opened for writing, too, so that it does not end when one who has asked closes it.
    with ThreadPoolExecutor(len(held)) as pool, os.fdopen(os.open(fifo, os.O_RDWR), encoding="ascii") as asked:
        while asked.readline():
            print(json.dumps(dict(zip(held, pool.map(exchange, held.values()), strict=True))), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        for port in sys.argv[2:]:
            threading.Thread(target=serve, args=(int(port),)).start()
    else:
        ends = (word.partition("=")[::2] for word in sys.argv[3:])
        split = {name: end.rpartition("/")[::2] for name, end in ends}
        hold(sys.argv[2], {name: (address, int(port)) for name, (address, port) in split.items()})
