"""link_degraded: a bad cable or switch port between a node and the lab network."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from labctl.errors import LabError, UsageError
from labctl.hardware.bench import CARD_NET, Bench, Files
from labctl.hardware.fault import HardwareFault, Place
from labctl.hardware.wire import WAYS, Quality, counters_of, sockets
from labctl.lab.qmp import Qmp
from node_agent.fault import Evidence, PlanNotes
from node_agent.schedule import Schedule, ScheduleValue
from node_agent.signs import Sign

START_S = 20.0
MOST_NODES = 32
_POLL_S = 0.05
_QUEUES: Mapping[str, str] = {"out": "rx", "in": "tx"}
"""The queue of the network's end in QEMU: it receives what the card sends."""


class BadCable(Place):
    """The cable of one card, and the addresses (MAC) of the nodes it is bad towards; none: all."""

    peers: tuple[str, ...]
    names: tuple[str, ...]

    def describe(self) -> str:
        return f"the cable of the lab network, towards {', '.join(self.names)}" if self.names else (
            "the cable of the lab network"
        )  # fmt: skip


class LinkDegraded(HardwareFault):
    """Frames are lost, held back or swallowed between the card and the switch, as by a bad cable, a dirty optic, a
    switch port that drops, or a path with a smaller MTU that answers nothing.

    Both ends keep their carrier, and no kernel has a rule, a queueing discipline or a counter that would tell.
    With `peers` it is bad towards these nodes only, as the path between two racks is.
    """

    name: ClassVar[str] = "link_degraded"
    summary: ClassVar[str] = "the cable of the lab network loses, delays or swallows frames"
    operator_sees: ClassVar[str] = (
        "ping loses or is late, TCP retransmits (nstat TcpRetransSegs, ss -i), large packets vanish where the MTU "
        "is smaller; the carrier stays, no interface counts errors, no rule or qdisc explains it"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"loss_percent": 0, "mtu": 1000, "direction": "out"})
    place: ClassVar[type[Place]] = BadCable
    holds: ClassVar[tuple[str, ...]] = ("lab network cable",)

    loss_percent: float = Field(default=5.0, ge=0, le=100, description="share of frames that are lost")
    burst: float = Field(
        default=1.0, ge=1, le=1000, description="mean number of frames lost in a row; 1: each alone"
    )
    mtu: int = Field(default=0, ge=0, le=9000, description="payloads with more bytes vanish; 0: none")
    delay_ms: float = Field(default=0, ge=0, le=60_000, description="how long each frame is held back")
    jitter_ms: float = Field(default=0, ge=0, le=60_000, description="the delay varies by as much; order is kept")
    kib_per_s: int = Field(default=0, ge=0, le=2**20, description="KiB a second; 0: any number")
    direction: Literal["both", "in", "out"] = Field(
        default="both", description="out of the node, into it, or both"
    )
    peers: tuple[str, ...] = Field(
        default=(), max_length=64, description="the nodes towards which it is bad, or their addresses; none: all"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the dice that choose the frames")
    schedule: Schedule = Field(default=ScheduleValue(), description="always, or burst:ON/OFF in seconds")

    @model_validator(mode="after")
    def _bad_at_all(self) -> LinkDegraded:
        if not (self.loss_percent or self.mtu or self.delay_ms or self.jitter_ms or self.kib_per_s):
            raise ValueError("nothing is bad: give loss_percent, mtu, delay_ms, jitter_ms or kib_per_s")
        if self.schedule.kind not in ("always", "burst"):
            raise ValueError("schedule: a cable is bad by time; allowed: always, burst:ON/OFF")
        loss = self.loss_percent / 100
        if self.burst > 1 and loss < 1 and loss / (1 - loss) > self.burst:
            raise ValueError(f"burst: {self.burst:g} is too short to lose {self.loss_percent:g} percent")
        return self

    def locate(self, bench: Bench) -> BadCable:
        from labctl.lab import identity  # brings cryptography, which listing faults does not wait for

        numbers: dict[str, int] = {}
        for number in range(1, MOST_NODES + 1):
            words = (*identity.node_names(number)[-1:], *identity.lan_addresses(number))
            numbers |= dict.fromkeys(words, number)
        if unknown := [one for one in self.peers if one not in numbers]:
            raise UsageError(f"peers: {unknown[0]} is no node of this lab", "w1, w2, … or their lab addresses")
        found = sorted({numbers[one] for one in self.peers})
        names = tuple(f"w{number}" for number in found)
        if bench.node.name in names:
            raise UsageError(f"peers: {bench.node.name} is the node itself", "name the others")
        return BadCable(peers=tuple(identity.mac(number, lan=True) for number in found), names=names)

    def actions(self, place: Place) -> tuple[str, ...]:
        return (f"put a bad wire between {CARD_NET} and its switch ({self.direction})",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's filter-redirector",
            covers=("every frame of the lab network, ARP and neighbour discovery as well",),
            not_covered=("the control network: labctl goes on reaching the node",),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        return ()  # that nothing on the node tells of it is what such a cable is like

    def quality(self, place: BadCable) -> Quality:
        """What the wire's process is told."""
        bursts = self.schedule.kind == "burst"
        return Quality(
            ways=WAYS if self.direction == "both" else (self.direction,), peers=place.peers,
            loss=self.loss_percent / 100, burst=self.burst, mtu=self.mtu, delay_s=self.delay_ms / 1000,
            jitter_s=self.jitter_ms / 1000, bytes_per_s=self.kib_per_s * 1024, seed=self.seed,
            on_s=self.schedule.a if bursts else 1.0, off_s=self.schedule.b if bursts else 0.0,
        )  # fmt: skip

    def plant(self, bench: Bench, place: Place) -> None:
        if not isinstance(place, BadCable):
            raise TypeError(f"{type(place).__name__} is no place of this fault")
        base = _base(bench.files)
        told = json.dumps(dataclasses.asdict(self.quality(place)))
        bench.start((sys.executable, "-m", "labctl.hardware.wire", str(base), told), bench.files.places.log)
        _await(counters_of(base))
        with bench.qmp() as qmp:
            for (way, end), path in sockets(base).items():
                address = {"type": "unix", "data": {"path": str(path)}}
                backend = {"type": "socket", "data": {"addr": address, "server": False}}
                qmp.execute("chardev-add", id=_name(bench.tag, way, end), backend=backend)
            for way in WAYS:
                ends = {"outdev": _name(bench.tag, way, "from"), "indev": _name(bench.tag, way, "to")}
                filter_of = {"qom-type": "filter-redirector", "id": _name(bench.tag, way), "queue": _QUEUES[way]}
                qmp.send("object-add", {**filter_of, "netdev": CARD_NET, **ends})

    def phase(self, bench: Bench, place: Place, age_s: float) -> None:
        """Without its process the cable would be cut: take it away, the evidence says that nothing is armed."""
        with bench.qmp() as qmp:
            if _filters(qmp, bench.tag) and not _is_carried(qmp, bench.tag):
                _remove(qmp, bench.tag)

    def heal(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            _remove(qmp, bench.tag)

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        with bench.qmp() as qmp:
            return tuple(f"{name} in QEMU" for name in (*_filters(qmp, bench.tag), *_channels(qmp, bench.tag)))

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        with bench.qmp() as qmp:
            armed = len(_filters(qmp, bench.tag)) == len(WAYS) and _is_carried(qmp, bench.tag)
        counters = _counters(bench.files)
        hits = counters.get("lost", 0) + counters.get("too_long", 0) + counters.get("late", 0)
        notes = () if armed else ("the process that was the wire has ended",)
        return Evidence(armed=armed, hits=hits, counters=counters, notes=notes)


def _base(files: Files) -> Path:
    return files.places.run / f"{files.places.name}.{files.tag}"


def _name(tag: str, *words: str) -> str:
    return "-".join((tag, *words))


def _await(path: Path) -> None:
    deadline = time.monotonic() + START_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise LabError(f"the process of the wire did not start within {START_S:.0f} s")
        time.sleep(_POLL_S)


def _counters(files: Files) -> dict[str, int]:
    try:
        return {str(name): int(n) for name, n in json.loads(counters_of(_base(files)).read_text()).items()}
    except FileNotFoundError:
        return {}


def _filters(qmp: Qmp, tag: str) -> list[str]:
    listed = qmp.execute("qom-list", path="/objects")
    return [one["name"] for one in listed if one["name"].startswith(f"{tag}-")]


def _channels(qmp: Qmp, tag: str) -> list[str]:
    return [one["label"] for one in _chardevs(qmp, tag)]


def _is_carried(qmp: Qmp, tag: str) -> bool:
    return not any(one["filename"].startswith("disconnected") for one in _chardevs(qmp, tag))


def _chardevs(qmp: Qmp, tag: str) -> list[Mapping[str, Any]]:
    return [one for one in qmp.execute("query-chardev") if one["label"].startswith(f"{tag}-")]


def _remove(qmp: Qmp, tag: str) -> None:
    """Filters first: what they use cannot go before them."""
    for name in _filters(qmp, tag):
        qmp.execute("object-del", id=name)
    for name in _channels(qmp, tag):
        qmp.execute("chardev-remove", id=name)
