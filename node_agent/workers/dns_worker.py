"""Spoils answers of the domain name system on their way to who asked. Run as a script by an injection.

Settings: `queue`, the number of the packet queue; `names`, `answer`, `types`, `v4`, `v6` as in
:class:`node_agent.workers.dns_answers.Spoiling`; `cgroups`, the folders of the control groups whose sockets are
meant, with those below them; none: all of the node; `every`, 1 to spoil each answer that fits, 2 for the first of
two, and so on.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from node_agent.workers.dns_answers import Spoiling, spoil
from node_agent.workers.packet_queue import PacketQueue, Queued
from node_agent.workers.packets import TCP, Packet, parse, with_payload
from node_agent.workers.serving import RefusedError, main_of, serve
from node_agent.workers.socket_diag import SocketFinder

_FLOWS = 256
_LENGTH = 2


class Spoiler:
    """Judges packets, and counts."""

    def __init__(self, wanted: Spoiling, cgroups: tuple[str, ...], every: int = 1) -> None:
        self._wanted, self._cgroups, self._every = wanted, cgroups, every
        self._finder = SocketFinder() if cgroups else None
        self._lengths: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self.counters = {"hits": 0, "answers_seen": 0, "fitting": 0, "of_others": 0}

    def judge(self, queued: Queued) -> bytes | None:
        """What becomes of a packet, see :data:`node_agent.workers.packet_queue.Judge`."""
        packet = parse(queued.data)
        if packet is None or not packet.payload:
            return None
        spoiled = self._stream(packet) if packet.protocol == TCP else self._one(packet.payload)
        if spoiled is None:
            return None
        if not self._is_meant(packet, queued.interface):
            self.counters["of_others"] += 1
            return None
        self.counters["fitting"] += 1
        if (self.counters["fitting"] - 1) % self._every:
            return None
        self.counters["hits"] += 1
        return with_payload(packet, spoiled) if spoiled else b""

    def _one(self, message: bytes) -> bytes | None:
        self.counters["answers_seen"] += 1
        return spoil(message, self._wanted)

    def _stream(self, packet: Packet) -> bytes | None:
        """A segment of a stream: messages, each after its length (RFC 1035, 4.2.2).

        A length may come in a segment of its own. Where a segment begins within a message, it goes on as it is.
        """
        flow, payload = (packet.target, packet.target_port, packet.source_port), packet.payload
        if len(payload) == _LENGTH:
            self._lengths[flow] = int.from_bytes(payload, "big")
            if len(self._lengths) > _FLOWS:
                self._lengths.popitem(last=False)
            return None
        parts: list[bytes] = []
        changed, rest = False, payload
        length = self._lengths.get(flow)
        if length is not None and rest[:_LENGTH] == length.to_bytes(_LENGTH, "big"):
            length = None  # sent again, in one piece
        while rest:
            if length is None:
                parts.append(rest[:_LENGTH])
                length, rest = int.from_bytes(rest[:_LENGTH], "big"), rest[_LENGTH:]
            message, rest = rest[:length], rest[length:]
            length = None
            spoiled = self._one(message)
            if spoiled == b"":
                return b""
            changed = changed or spoiled is not None
            parts.append(message if spoiled is None else spoiled)
        return b"".join(parts) if changed else None

    def _is_meant(self, packet: Packet, interface: int) -> bool:
        if self._finder is None:
            return True
        source, target = (packet.source, packet.source_port), (packet.target, packet.target_port)
        found = self._finder.cgroup(packet.protocol, source, target, interface)
        return found in {number for folder in self._cgroups for number in _numbers(folder)}


def _numbers(folder: str) -> list[int]:
    """The numbers of a control group and of all below it: those of their folders. It may be gone, or come anew."""
    return [os.stat(path).st_ino for path, _, _ in os.walk(folder)]  # noqa: PTH116


def run(settings: dict[str, Any]) -> int:
    """Listen until standard input ends."""
    spoiling = Spoiling(
        names=tuple(settings["names"]), answer=settings["answer"], types=tuple(settings["types"]),
        v4=settings["v4"], v6=settings["v6"],
    )  # fmt: skip
    spoiler = Spoiler(spoiling, tuple(settings["cgroups"]), settings["every"])
    try:
        queue = PacketQueue(settings["queue"], spoiler.judge)
    except OSError as error:
        raise RefusedError(f"queue {settings['queue']} cannot be had: {error.strerror}") from error
    return serve(lambda: {"counters": spoiler.counters}, source=queue.socket, take=queue.take)


if __name__ == "__main__":
    sys.exit(main_of(run))
