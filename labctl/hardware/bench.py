"""What a hardware fault sees of a machine: its QEMU, its files, its agent, its power."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from labctl.errors import LabError
from labctl.lab.processes import spawn

if TYPE_CHECKING:  # faults are listed by `labctl --help`, too, which does not wait for gRPC
    from labctl.lab.machine import Places
    from labctl.lab.model import Node
    from labctl.lab.qmp import Qmp
    from labctl.transport.client import AgentClient

DISK, DISK_NODE = "datadev", "data0"
"""The data disk's device and the block node that holds its data: see :mod:`labctl.lab.machine`."""

CARD, CARD_NET, CARD_PORT = "lan", "lannet", "rp1"
"""The card of the lab network, the network behind it, and the port it is plugged into."""


LOST = "lost"
"""Under this a fault's recovery remembers what data are gone for good, a line each."""

_LONGEST_ID = 20
"""Block nodes have names of at most 31 characters, and a tag gets an ending."""


def tag_of(injection_id: str) -> str:
    """The mark of an injection in QEMU and in file names."""
    short = len(injection_id) <= _LONGEST_ID
    return f"gf-{injection_id if short else hashlib.sha256(injection_id.encode()).hexdigest()[:_LONGEST_ID]}"


class Memory(Protocol):
    """What one injection remembers between commands; written to its record at once."""

    def get(self, name: str) -> str:
        """Empty where nothing is remembered."""

    def put(self, name: str, value: str) -> None: ...


@dataclass(frozen=True)
class Files:
    """The files of a machine whose process is gone, and the mark of one injection."""

    places: Places
    tag: str

    @property
    def overlay(self) -> Path:
        """Where an injection keeps what the guest writes meanwhile."""
        return self.places.node / f"{self.tag}.qcow2"


class Power(Protocol):
    """The machine's process: see :class:`labctl.lab.qemu.QemuLab`."""

    def process(self) -> str:
        """Which process it is: its pid and when it began; empty where none runs."""

    def off(self) -> None:
        """Pull the plug."""

    def on(self) -> None:
        """Boot from the disks as they are, and wait until the agent answers and the clock is right.

        The caller holds the lab's lock.
        """


@dataclass(frozen=True)
class Bench:
    """One machine and one injection. `agent` connects when it is first asked for."""

    node: Node
    files: Files
    memory: Memory
    power: Power
    agent: Callable[[], AgentClient]
    connect: Callable[[], Qmp]
    run: Callable[[tuple[str, ...]], int] = field(default=lambda argv: 0)
    """Runs a program on the node over SSH and returns its exit status."""
    ready: Callable[[], None] = field(default=lambda: None)
    """Waits until the agent answers and sets the guest's clock."""
    start: Callable[[tuple[str, ...], Path], None] = spawn
    """Starts a program here that outlives us, with its output in a file."""

    @property
    def tag(self) -> str:
        """The mark of the injection, for the names of what it makes."""
        return self.files.tag

    @contextmanager
    def qmp(self) -> Iterator[Qmp]:
        """A session with the machine's QEMU; short, because QEMU serves one at a time."""
        with self.connect() as session:
            yield session


def block_nodes(qmp: Qmp) -> dict[str, Mapping[str, Any]]:
    """The block nodes of a machine, by name."""
    return {node["node-name"]: node for node in qmp.execute("query-named-block-nodes", flat=True)}


def devices(qmp: Qmp) -> set[str]:
    """The devices with an id."""
    listed = qmp.execute("qom-list", path="/machine/peripheral")
    return {one["name"] for one in listed if one["type"].startswith("child<")}


def drive_of(qmp: Qmp, device: str) -> Mapping[str, Any]:
    """What QEMU tells of a device's drive; empty where the device is not there."""
    for one in qmp.execute("query-block"):
        if _is(one, device):
            inserted: Mapping[str, Any] = one.get("inserted", {})
            return inserted
    return {}


def stats_of(qmp: Qmp, device: str) -> Mapping[str, int]:
    """What QEMU has counted of a device's requests since the device is there. Raises LabError where it is not."""
    for one in qmp.execute("query-blockstats"):
        if _is(one, device):
            stats: Mapping[str, int] = one["stats"]
            return stats
    raise LabError(f"{device} is not plugged in")


def failed_reads(qmp: Qmp, device: str) -> int:
    """How many reads of a device QEMU has answered with an error since the device is there."""
    return stats_of(qmp, device)["failed_rd_operations"]


def _is(one: Mapping[str, Any], device: str) -> bool:
    return one.get("qdev", "") in (device, f"/machine/peripheral/{device}")


def switch_drive(qmp: Qmp, device: str, node: str) -> None:
    """Have a running device use another block node. In-flight requests are waited for by QEMU."""
    qmp.execute("qom-set", path=f"/machine/peripheral/{device}", property="drive", value=node)
