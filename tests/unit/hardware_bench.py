"""A machine of plain objects for hardware faults: QEMU as a model of its block graph, devices and power."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from labctl.errors import LabError
from labctl.hardware.bench import Bench, Files, Memory, tag_of
from labctl.hardware.injector import HardwareInjector
from labctl.hardware.journal import Journal, Record
from labctl.hardware.wire import counters_of
from labctl.lab.machine import Places
from labctl.lab.model import Node
from labctl.lab.qmp import Qmp, QmpError
from labctl.transport.client import AgentClient
from node_agent.host.mounting import Repair
from node_agent.signs import Sign, SignSeen

DISK_BYTES = 512 * 2**20


class Killed(BaseException):
    """The process that ran labctl was killed: nothing it would have done next happens."""


@dataclass
class ToyQemu:
    """What QEMU knows. `kill_at` counts commands down; from then on its client is dead until `revive`."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    throttle: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    running: bool = True
    link: bool = True
    failed_reads: int = 0
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    channels: dict[str, str] = field(default_factory=dict)
    """Character devices, and what QEMU calls the other end."""

    commands: list[str] = field(default_factory=list)
    kill_at: int = -1
    dead: bool = False
    console: Path | None = None
    refuse: str = ""
    """A command that QEMU refuses."""

    def __post_init__(self) -> None:
        self.nodes.setdefault("data0", {"node-name": "data0", "image": {"virtual-size": DISK_BYTES}})
        props = {"serial": "gfdata", "channel": 0, "scsi-id": 0, "lun": 0, "drive": "data0"}
        self.devices.setdefault("datadev", props)
        self.devices.setdefault("lan", {"mac": "52:54:00:67:02:01"})
        self.devices.setdefault("rp1", {})

    def state(self) -> Any:
        """All that a fault may change."""
        return (
            self.nodes,
            self.devices,
            self.throttle,
            self.jobs,
            self.running,
            self.link,
            self.objects,
            self.channels,
        )

    def revive(self) -> None:
        self.kill_at, self.dead = -1, False

    # -- what a Qmp has -------------------------------------------------------------------------------------------

    def execute(self, command: str, **arguments: Any) -> Any:
        return self.send(command, {name.replace("_", "-"): value for name, value in arguments.items()})

    def send(self, command: str, arguments: Mapping[str, Any]) -> Any:
        self.die_here()
        self.commands.append(command)
        if command == self.refuse:
            raise QmpError(f"{command}: refused")
        return getattr(self, "do_" + command.replace("-", "_"))(dict(arguments))

    def monitor(self, line: str) -> str:
        self.die_here()
        self.commands.append(line.split(maxsplit=1)[0])
        if line.startswith("mce -b") and self.console:
            self.console.write_text("Kernel panic - not syncing: Fatal local machine check\n")
        return "OK" if line.startswith("pcie") else ""

    def wait_event(self, name: str, timeout: float, **data: Any) -> bool:
        return data["device"] not in self.devices

    def die_here(self) -> None:
        if self.kill_at == 0 or self.dead:
            self.dead = True
            raise Killed
        self.kill_at -= 1

    # -- commands -------------------------------------------------------------------------------------------------

    def do_query_named_block_nodes(self, given: dict[str, Any]) -> Any:
        """A node that was made with a file has another one below it, which QEMU gives a name."""
        named = list(self.nodes.values())
        below = [n["file"]["filename"] for n in named if isinstance(n.get("file"), dict)]
        return [*named, *({"node-name": f"#block{n}", "drv": "file", "file": f} for n, f in enumerate(below))]

    def do_qom_list(self, given: dict[str, Any]) -> Any:
        there = self.objects if given["path"] == "/objects" else self.devices
        return [{"name": name, "type": "child<device>"} for name in there]

    def do_qom_get(self, given: dict[str, Any]) -> Any:
        return self.devices[given["path"].rpartition("/")[2]][given["property"]]

    def do_qom_set(self, given: dict[str, Any]) -> None:
        assert given["value"] in self.nodes
        self.devices[given["path"].rpartition("/")[2]]["drive"] = given["value"]

    def do_query_block(self, given: dict[str, Any]) -> Any:
        disk = self.devices.get("datadev")
        return [{"qdev": "datadev", "inserted": {"node-name": disk["drive"], **self.throttle}}] if disk else []

    def do_query_blockstats(self, given: dict[str, Any]) -> Any:
        stats = {"rd_operations": 5, "wr_operations": 3, "failed_rd_operations": self.failed_reads}
        return [{"qdev": "datadev", "stats": stats}] if "datadev" in self.devices else []

    def do_blockdev_add(self, given: dict[str, Any]) -> None:
        assert given["node-name"] not in self.nodes and len(given["node-name"]) <= 31
        assert given.get("backing", given.get("image")) in self.nodes
        self.nodes[given["node-name"]] = given

    def do_blockdev_del(self, given: dict[str, Any]) -> None:
        name = given["node-name"]
        assert name not in (node.get("backing", node.get("image")) for node in self.nodes.values())
        assert self.devices.get("datadev", {}).get("drive") != name
        del self.nodes[name]

    def do_block_set_io_throttle(self, given: dict[str, Any]) -> None:
        assert given.pop("id") == "datadev"
        self.throttle.clear()
        self.throttle.update({name: value for name, value in given.items() if value})

    def do_blockdev_reopen(self, given: dict[str, Any]) -> None:
        for one in given["options"]:
            before = self.nodes[one["node-name"]]
            kept = {name: before[name] for name in ("driver", "discard", "cache")}
            assert {name: one[name] for name in kept} == kept and one["file"] == "#block0"
            self.nodes[one["node-name"]] = {**before, "backing": one["backing"]}

    def do_block_commit(self, given: dict[str, Any]) -> None:
        assert given["job-id"] not in self.jobs and given["base-node"] == "data0"
        assert self.nodes[given["device"]]["backing"] == "data0", "a filter's errors would end the copy"
        self.jobs[given["job-id"]] = "ready"

    def do_query_jobs(self, given: dict[str, Any]) -> Any:
        return [{"id": name, "status": status} for name, status in self.jobs.items()]

    def do_block_job_complete(self, given: dict[str, Any]) -> None:
        assert not self.running, "the guest writes while the overlay is given up"
        self.jobs[given["device"]] = "concluded"
        self.devices["datadev"]["drive"] = "data0"

    def do_block_job_cancel(self, given: dict[str, Any]) -> None:
        self.jobs[given["device"]] = "concluded"

    def do_job_dismiss(self, given: dict[str, Any]) -> None:
        assert self.jobs.pop(given["id"]) == "concluded"

    def do_query_status(self, given: dict[str, Any]) -> Any:
        return {"running": self.running, "status": "running" if self.running else "paused"}

    def do_stop(self, given: dict[str, Any]) -> None:
        self.running = False

    def do_cont(self, given: dict[str, Any]) -> None:
        self.running = True

    def do_inject_nmi(self, given: dict[str, Any]) -> None:
        pass

    def do_set_link(self, given: dict[str, Any]) -> None:
        self.link = given["up"]

    def do_chardev_add(self, given: dict[str, Any]) -> None:
        address = given["backend"]["data"]["addr"]
        assert address["type"] == "unix" and given["id"] not in self.channels
        self.channels[given["id"]] = f"unix:{address['data']['path']}"

    def do_query_chardev(self, given: dict[str, Any]) -> Any:
        return [{"label": name, "filename": end} for name, end in self.channels.items()]

    def do_object_add(self, given: dict[str, Any]) -> None:
        assert {given["indev"], given["outdev"]} <= {*self.channels} and given["netdev"] == "lannet"
        self.objects[given.pop("id")] = given

    def do_object_del(self, given: dict[str, Any]) -> None:
        del self.objects[given["id"]]

    def do_chardev_remove(self, given: dict[str, Any]) -> None:
        assert not any(given["id"] in (one["indev"], one["outdev"]) for one in self.objects.values()), "in use"
        del self.channels[given["id"]]

    def do_device_del(self, given: dict[str, Any]) -> None:
        del self.devices[given["id"]]

    def do_device_add(self, given: dict[str, Any]) -> None:
        kept = {k: v for k, v in given.items() if k not in ("driver", "id", "bus", "netdev", "romfile")}
        self.devices[given["id"]] = kept


class ToyAgent:
    """An agent that maps every file to the same sectors, and reads them when it plans."""

    def __init__(self, machine: ToyMachine) -> None:
        self._machine = machine
        self.silent = False

    def plan(self, injection_id: str, fault: str, parameters: Mapping[str, Any]) -> Any:
        qemu = self._machine.qemu
        if "blkdebug" in {node.get("driver") for node in qemu.nodes.values()}:
            qemu.failed_reads += 1
            raise LabError("w1: cannot be read")
        pieces = [{"start": 8, "length": 8, "base": "8:0", "base_start": 2048, "offset": 4096}]
        return type(
            "Plan",
            (),
            {"missing": (), "target_data": {"pieces": pieces, "file": parameters.get("file", ""), "disk": "data"}},
        )()

    def observe(self, signs: Any, mark: Any = None) -> Any:
        if self.silent:
            raise LabError("w1 does not answer")
        if mark is None:
            return {"log": 7, "counters": {}}, ()
        up = self._machine.qemu.link and "lan" in self._machine.qemu.devices
        return mark, tuple(_seen(sign, up or "carrier" not in sign.path) for sign in signs)

    def repair_disk(self, injection_id: str, disk: str = "") -> Repair:
        return Repair(("the table leads to it",), ("/srv/data/new (4 bytes)",))


def _seen(sign: Sign, seen: bool) -> SignSeen:
    return SignSeen(kind=sign.kind, what=sign.what, when=sign.when, seen=seen, found="")


class ToyPower:
    """Power of a machine whose process is a number that counts its boots."""

    def __init__(self, machine: ToyMachine) -> None:
        self._machine = machine

    def process(self) -> str:
        return f"{self._machine.boots}" if self._machine.on else ""

    def off(self) -> None:
        self._machine.qemu.die_here()
        self._machine.lose_power()

    def on(self) -> None:
        self._machine.qemu.die_here()
        self._machine.give_power()


class DyingJournal(Journal):
    """Nothing is written any more by a process that is dead."""

    qemu: ToyQemu

    def write(self, record: Record) -> Record:
        if self.qemu.dead:
            raise Killed
        return super().write(record)


@dataclass
class ToyMachine:
    """One node of a lab, and the injectors of whoever works on it."""

    directory: Path
    qemu: ToyQemu = field(default_factory=ToyQemu)
    now: float = 100.0
    boot: str = "boot-1"
    boots: int = 1
    on: bool = True
    woken: int = 0
    locks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = ToyAgent(self)
        for folder in ("nodes/w1", "run"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        self.qemu.console = self.places.console

    @property
    def places(self) -> Places:
        return Places(self.directory / "nodes" / "w1", self.directory / "run", "w1")

    def lose_power(self) -> None:
        """The process is gone, with all that it knew."""
        kill_at, dead = self.qemu.kill_at, self.qemu.dead
        self.on, self.qemu = False, ToyQemu(kill_at=kill_at, dead=dead)

    def give_power(self) -> None:
        self.boots += 0 if self.on else 1
        self.on = True

    def injector(self) -> HardwareInjector:
        """What a new `labctl`, or the watchdog, has."""
        journal = DyingJournal(self.directory, "w1")
        journal.qemu = self.qemu

        @contextlib.contextmanager
        def connect() -> Iterator[Qmp]:
            if not self.on:
                raise QmpError("QEMU does not answer")
            yield cast(Qmp, self.qemu)

        def bench(injection_id: str, memory: Memory) -> Bench:
            return Bench(
                Node(name="w1", address="127.0.0.1"), Files(self.places, tag_of(injection_id)), memory,
                ToyPower(self), lambda: cast(AgentClient, self.agent), cast(Any, connect), start=started,
            )  # fmt: skip

        @contextlib.contextmanager
        def lab_lock() -> Iterator[None]:
            self.locks.append("lab")
            yield

        def wake() -> None:
            self.woken += 1

        def started(argv: tuple[str, ...], log: Path) -> None:
            """A wire that has carried nothing yet."""
            self.qemu.die_here()
            counters_of(Path(argv[3])).write_text("{}")

        return HardwareInjector(
            "w1",
            journal,
            bench,
            lab_lock=lab_lock,
            wake_watchdog=wake,
            clock=lambda: self.now,
            boot=lambda: self.boot,
        )
