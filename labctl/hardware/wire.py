"""The wire between a card and the switch of its lab, as a process that a bad wire's faults are made of.

QEMU hands it every frame of a card over sockets, and takes those it gives back (filter-redirector, see
docs/colo-proxy.txt of QEMU: each frame after its length as 32 bits, big-endian). Run as a program by
`link_degraded`; it ends when QEMU hangs up. Only the standard library: it has to be there at once.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Way = Literal["out", "in"]
"""Of a frame: out of the card, or into it."""

WAYS: tuple[Way, ...] = ("out", "in")
ETHERNET = 14
CONNECT_S, SEND_S, TELL_S = 60.0, 1.0, 0.5
QUEUE_S = 1.0
"""As much as a slow wire holds back, by its own speed; what comes on top is lost."""

_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 17


@dataclass(frozen=True)
class Quality:
    """How bad a wire is. `peers`: addresses (MAC) whose frames it is bad for; none: all frames.

    `loss` is a share; `burst` the mean number of frames lost in a row (1: each for itself). Frames with more than
    `mtu` bytes of payload vanish (0: none does). `jitter_s` is around the delay, order kept; `bytes_per_s` 0: any.
    It is bad for `on_s` of every `on_s + off_s` seconds, or always where `off_s` is 0.
    """

    ways: tuple[Way, ...] = WAYS
    peers: tuple[str, ...] = ()
    loss: float = 0.0
    burst: float = 1.0
    mtu: int = 0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    on_s: float = 1.0
    off_s: float = 0.0
    seed: int = 0


@dataclass
class Wire:
    """Says of each frame when it arrives, if it does. Times in seconds since the wire is bad."""

    quality: Quality
    counters: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("seen", "lost", "too_long", "late"), 0)
    )

    def __post_init__(self) -> None:
        self._dice = {way: random.Random(f"{self.quality.seed} {way}") for way in WAYS}  # noqa: S311 - no secret
        self._peers = {bytes.fromhex(mac.replace(":", "")) for mac in self.quality.peers}
        self._losing = dict.fromkeys(WAYS, False)
        self._busy, self._last = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0)

    def arrives(self, way: Way, frame: bytes, now: float) -> float | None:
        """When the frame comes out at the other end; None where it never does."""
        if not self._is_bad_for(way, frame, now):
            return max(now, self._last[way])
        self.counters["seen"] += 1
        bad = self.quality
        if bad.mtu and len(frame) - ETHERNET > bad.mtu:
            self.counters["too_long"] += 1
            return None
        if self._loses(way) or self._is_full(way, now):
            self.counters["lost"] += 1
            return None
        due = now
        if bad.bytes_per_s:
            due = self._busy[way] = max(now, self._busy[way]) + len(frame) / bad.bytes_per_s
        due += max(0.0, bad.delay_s + bad.jitter_s * self._dice[way].uniform(-1, 1))
        due = self._last[way] = max(due, self._last[way])
        self.counters["late"] += due > now
        return due

    def _is_bad_for(self, way: Way, frame: bytes, now: float) -> bool:
        bad = self.quality
        if way not in bad.ways or (bad.off_s and now % (bad.on_s + bad.off_s) >= bad.on_s):
            return False
        return not self._peers or not self._peers.isdisjoint((frame[:6], frame[6:12]))

    def _loses(self, way: Way) -> bool:
        """Gilbert's channel: good and bad in turn, all lost while it is bad."""
        loss, burst, dice = self.quality.loss, self.quality.burst, self._dice[way]
        if loss <= 0 or loss >= 1 or burst <= 1:
            return dice.random() < loss
        changes = 1 / burst if self._losing[way] else loss / (burst * (1 - loss))
        if dice.random() < changes:
            self._losing[way] = not self._losing[way]
        return self._losing[way]

    def _is_full(self, way: Way, now: float) -> bool:
        return self.quality.bytes_per_s > 0 and self._busy[way] - now > QUEUE_S


def sockets(base: Path) -> dict[tuple[Way, str], Path]:
    """Where QEMU connects: for each way, what it hands over (`from`) and what it takes back (`to`)."""
    return {(way, end): base.with_name(f"{base.name}.{way}-{end}") for way in WAYS for end in ("from", "to")}


def counters_of(base: Path) -> Path:
    """Where the wire writes what it has done, as JSON."""
    return base.with_name(f"{base.name}.json")


def frames(buffer: bytearray) -> list[bytes]:
    """The whole frames at the beginning of what has come, taken out of it."""
    found = []
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        if length > _LONGEST:
            raise ValueError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(buffer) < end:
            break
        found.append(bytes(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return found


class Carrier:
    """Carries frames between the sockets until QEMU hangs up."""

    def __init__(self, base: Path, wire: Wire, clock: Callable[[], float] = time.monotonic) -> None:
        self._base, self._wire, self._clock, self._began = base, wire, clock, clock()
        self._ends: dict[tuple[Way, str], socket.socket] = {}
        self._waiting: list[tuple[float, int, Way, bytes]] = []
        self._count, self._told = 0, 0.0

    def run(self) -> None:
        """Listen, be connected, carry."""
        try:
            self._connect()
            self._carry()
        finally:
            for path in (*sockets(self._base).values(), counters_of(self._base)):
                path.unlink(missing_ok=True)

    def _connect(self) -> None:
        listening = {}
        for end, path in sockets(self._base).items():
            path.unlink(missing_ok=True)
            listening[end] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening[end].bind(str(path))
            listening[end].listen(1)
        self._tell(0.0)
        for end, one in listening.items():
            one.settimeout(CONNECT_S)
            self._ends[end], _ = one.accept()
            self._ends[end].settimeout(SEND_S)
            one.close()

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            buffers = {way: bytearray() for way in WAYS}
            for (way, end), channel in self._ends.items():
                if end == "from":
                    selector.register(channel, selectors.EVENT_READ, way)
            while True:
                now = self._clock() - self._began
                until = self._waiting[0][0] - now if self._waiting else TELL_S
                for key, _ in selector.select(max(0.0, min(until, TELL_S))):
                    came = os.read(key.fd, 1 << 16)
                    if not came:
                        return
                    buffers[key.data] += came
                    for frame in frames(buffers[key.data]):
                        self._take(key.data, frame)
                self._give(self._clock() - self._began)

    def _take(self, way: Way, frame: bytes) -> None:
        due = self._wire.arrives(way, frame, self._clock() - self._began)
        if due is not None:
            self._count += 1
            heapq.heappush(self._waiting, (due, self._count, way, frame))

    def _give(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, _, way, frame = heapq.heappop(self._waiting)
            # A card that takes nothing loses frames, as it does without this wire.
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                self._ends[way, "to"].sendall(_LENGTH.pack(len(frame)) + frame)
        if now - self._told > TELL_S:
            self._tell(now)

    def _tell(self, now: float) -> None:
        self._told = now
        path = counters_of(self._base)
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(self._wire.counters))
        fresh.replace(path)


def main(base: str, quality: str) -> int:
    """Until QEMU hangs up, or does not come."""
    said = json.loads(quality)
    said |= {"ways": tuple(said["ways"]), "peers": tuple(said["peers"])}
    with contextlib.suppress(TimeoutError):
        Carrier(Path(base), Wire(Quality(**said))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
