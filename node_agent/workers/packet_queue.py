"""Packets that the kernel asks about: a queue of nfnetlink_queue. Source: linux/netfilter/nfnetlink_queue.h.

The rule that fills the queue should have the flag `bypass`: where nobody listens any more, packets go on. A queue
that is full lets packets go on, too.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from node_agent.workers.netlink import ACK, NETFILTER, NFGEN, Channel, attribute, attributes, message, messages

_SUBSYSTEM = 3 << 8
_PACKET, _VERDICT, _CONFIG = _SUBSYSTEM, _SUBSYSTEM | 1, _SUBSYSTEM | 2
_BIND, _COPY_PACKET, _FAIL_OPEN = 1, 2, 1
_CMD, _PARAMS, _MAXLEN, _MASK, _FLAGS = 1, 2, 3, 4, 5
_PACKET_HEADER, _VERDICT_HEADER, _IN_DEVICE, _PAYLOAD = 1, 2, 5, 10
_DROP, _ACCEPT = 0, 1
_LONGEST, _WAITING = 0xFFFF, 4096
_SOL_NETLINK, _NO_ENOBUFS, _RCVBUFFORCE = 270, 5, 33
_BUFFER = 4 << 20


@dataclass(frozen=True)
class Queued:
    """A packet as it is asked about, and the number of the interface that it came in by."""

    data: bytes
    interface: int


Judge = Callable[[Queued], bytes | None]
"""None: let it go on; empty: it vanishes; otherwise what goes on in its place."""


class PacketQueue:
    """Listens to one queue. Raises OSError (EPERM, EBUSY) where somebody else does."""

    def __init__(self, number: int, judge: Judge) -> None:
        self._number, self._judge = number, judge
        self._channel = Channel(NETFILTER)
        self.socket = self._channel.socket
        self.socket.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
        with suppress(PermissionError):
            self.socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _BUFFER)
        params = attribute(_PARAMS, struct.pack("!IB", _LONGEST, _COPY_PACKET))
        options = attribute(_MAXLEN, struct.pack("!I", _WAITING))
        flags = attribute(_MASK, struct.pack("!I", _FAIL_OPEN)) + attribute(_FLAGS, struct.pack("!I", _FAIL_OPEN))
        for part in (attribute(_CMD, struct.pack("!BxH", _BIND, 0)), params, options, flags):
            for _ in self._channel.ask(_CONFIG, self._head() + part, ACK):
                pass
        self.socket.setblocking(False)

    def _head(self) -> bytes:
        return NFGEN.pack(socket.AF_UNSPEC, 0, self._number)

    def take(self) -> None:
        """Judge what waits in the socket."""
        try:
            data = self.socket.recv(1 << 18)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                return
            raise
        for kind, _, body in messages(data):
            if kind == _PACKET:
                self._answer(attributes(body[NFGEN.size :]))

    def _answer(self, found: dict[int, bytes]) -> None:
        packet = found[_PACKET_HEADER][:4]
        device = int.from_bytes(found.get(_IN_DEVICE, b"\0"), "big")
        judged = self._judge(Queued(found.get(_PAYLOAD, b""), device))
        verdict = _DROP if judged == b"" else _ACCEPT
        body = self._head() + attribute(_VERDICT_HEADER, struct.pack("!I", verdict) + packet)
        if judged:
            body += attribute(_PAYLOAD, judged)
        self.socket.send(message(_VERDICT, body, 0, 0))
