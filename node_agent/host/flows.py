"""TCP connections of this machine, and entries of its connection tracking table."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from typing import Protocol

from node_agent.workers import socket_diag
from node_agent.workers.conntrack import Table
from node_agent.workers.packets import tcp_segment
from node_agent.workers.socket_diag import Connection

PROVOKED_BY = 0x6766
"""The urgent pointer, without the flag URG, of a segment that is sent to provoke an answer. It means nothing to
anybody, and the rules of an injection know by it what to let through."""

_HDRINCL_V6 = 36


class FlowsReader(Protocol):
    """Looking. All raise OSError."""

    def connections(self) -> Sequence[Connection]:
        """The TCP connections of this network namespace, those that are being closed included."""

    def fillers(self) -> int:
        """How many entries of the tracking table are there to fill it."""


class Flows(FlowsReader, Protocol):
    """Changing."""

    def provoke(self, connections: Sequence[Connection]) -> None:
        """Make both ends of connections send something, which changes nothing for them."""

    def clear_fillers(self) -> None:
        """Delete the entries that are there to fill the tracking table; none is fine. Raises OSError."""


class KernelFlows:
    """The real one. Making one touches nothing."""

    def connections(self) -> Sequence[Connection]:
        return list(socket_diag.connections())

    def fillers(self) -> int:
        with contextlib.closing(Table()) as table:
            return sum(1 for _ in table.ours())

    def clear_fillers(self) -> None:
        with contextlib.closing(Table()) as table:
            table.clear()

    def provoke(self, connections: Sequence[Connection]) -> None:
        # A segment outside of the window is answered at once with the numbers that the other end waits for
        # (RFC 9293, 3.10.7.4), whatever the connection does.
        for family in (socket.AF_INET, socket.AF_INET6):
            chosen = [one for one in connections if (":" in one.local) == (family == socket.AF_INET6)]
            if not chosen:
                continue
            with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
                if family == socket.AF_INET6:
                    raw.setsockopt(socket.IPPROTO_IPV6, _HDRINCL_V6, 1)
                for one in chosen:
                    _send(raw, (one.local, one.local_port), (one.remote, one.remote_port))
                    _send(raw, (one.remote, one.remote_port), (one.local, one.local_port))


def _send(raw: socket.socket, source: tuple[str, int], target: tuple[str, int]) -> None:
    sequence = random.getrandbits(32)
    segment = tcp_segment(*source, *target, sequence=sequence, urgent=PROVOKED_BY)
    with contextlib.suppress(OSError):  # no route, or another rule of the node's: that end speaks up by itself
        raw.sendto(segment, (target[0], 0))
