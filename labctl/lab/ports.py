"""Ports on the loopback interface for the nodes' control connections."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

import psutil

_OPEN = {
    psutil.CONN_ESTABLISHED,
    psutil.CONN_SYN_SENT,
    psutil.CONN_SYN_RECV,
    psutil.CONN_FIN_WAIT1,
    psutil.CONN_FIN_WAIT2,
    psutil.CONN_CLOSE_WAIT,
    psutil.CONN_LAST_ACK,
    psutil.CONN_CLOSING,
}


def is_free(port: int) -> bool:
    """Whether a listener can be put on 127.0.0.1:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(count: int) -> tuple[int, ...]:
    """`count` different free ports. Another process may still take one before it is used: be ready to retry."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(int(each.getsockname()[1]) for each in sockets)


def open_connections(ports: Sequence[int]) -> int:
    """How many TCP connections to these loopback ports are not fully closed yet."""
    wanted = set(ports)
    alive = (c for c in psutil.net_connections(kind="tcp4") if c.status in _OPEN)
    return sum(1 for c in alive if wanted & {end.port for end in (c.laddr, c.raddr) if end})
