"""Hardware actions on machines of QEMU, with a hypervisor of plain objects and a real disk image."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.run import machines
from labctl.run.machines import QemuMachines

from .test_world import ToyKeeper


@dataclass
class ToyQmp:
    lab: ToyHypervisor
    node: str

    def execute(self, command: str, **arguments: Any) -> None:
        more = " ".join(f"{k}={v}" for k, v in arguments.items())
        self.lab.did.append(f"{self.node} {command} {more}".strip())
        if command == "system_reset":
            self.lab.boots += 1


@dataclass
class ToyPower:
    lab: ToyHypervisor
    node: str

    def on(self, task: object) -> bool:
        self.lab.running.add(self.node)
        self.lab.did.append(f"{self.node} boots")
        return True


@dataclass
class ToyPlaces:
    data_disk: Path


@dataclass
class ToyHypervisor:
    home: Path
    running: set[str] = field(default_factory=lambda: {"w1", "w2"})
    did: list[str] = field(default_factory=list)
    boots: int = 0

    @contextmanager
    def qmp(self, name: str) -> Iterator[ToyQmp]:
        yield ToyQmp(self, name)

    def power(self, name: str) -> ToyPower:
        return ToyPower(self, name)

    def power_off(self, name: str) -> None:
        self.running.discard(name)
        self.did.append(f"{name} is killed")

    def places(self, name: str) -> ToyPlaces:
        return ToyPlaces(self.home / f"{name}.qcow2")

    def nodes(self) -> tuple[Node, ...]:
        return tuple(Node(name=name, address="127.0.0.1") for name in ("w1", "w2"))

    def runs(self, name: str) -> bool:
        return name in self.running


@pytest.fixture
def lab(tmp_path: Path) -> ToyHypervisor:
    return ToyHypervisor(tmp_path)


def hands(lab: ToyHypervisor, keepers: Mapping[str, ToyKeeper] | None = None) -> QemuMachines:
    def ready(node: Node) -> None:
        lab.did.append(f"{node.name} answers")

    return QemuMachines(cast("Any", lab), cast("Any", keepers or {}), ready, lambda node: f"boot {lab.boots}")


def test_a_reset_keeps_the_process(lab: ToyHypervisor) -> None:
    hands(lab).reset("w2")
    assert lab.did == ["w2 system_reset", "w2 cont", "w2 answers"]


def test_a_reset_that_does_not_come(lab: ToyHypervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "BOOT_S", 0.0)
    monkeypatch.setattr(ToyQmp, "execute", lambda self, command, **more: None)
    with pytest.raises(LabError, match="w2 did not boot"):
        hands(lab).reset("w2")


def test_off_and_on(lab: ToyHypervisor) -> None:
    mine = hands(lab)
    mine.on("w2")
    assert lab.did == [] and mine.state("w2") == "on"
    mine.off("w2")
    mine.off("w2")
    assert lab.did == ["w2 stop", "w2 system_reset"] and mine.state("w2") == "off"
    mine.on("w2")
    assert lab.did[2:] == ["w2 cont", "w2 answers"] and mine.state("w2") == "on"


def test_a_machine_whose_process_is_gone(lab: ToyHypervisor) -> None:
    lab.running.clear()
    mine = hands(lab)
    assert mine.state("w2") == "off"
    mine.off("w2")
    mine.reset("w2")
    assert lab.did == ["w2 boots", "w2 answers"]


def qemu(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_a_blank_disk_keeps_the_snapshot(lab: ToyHypervisor) -> None:
    disk = str(lab.home / "w2.qcow2")
    qemu("qemu-img", "create", "-q", "-f", "qcow2", disk, "8M")
    qemu("qemu-io", "-f", "qcow2", "-c", "write -P 7 0 8M", disk)
    qemu("qemu-img", "snapshot", "-c", "golden", disk)
    hands(lab).blank("w2")
    assert lab.did == ["w2 is killed", "w2 boots", "w2 answers"]
    assert "Pattern verification failed" not in qemu("qemu-io", "-f", "qcow2", "-c", "read -P 0 0 8M", disk)
    qemu("qemu-img", "snapshot", "-a", "golden", disk)
    assert "Pattern verification failed" not in qemu("qemu-io", "-f", "qcow2", "-c", "read -P 7 0 8M", disk)


def test_the_link(lab: ToyHypervisor) -> None:
    hands(lab).link("w2", up=False)
    assert lab.did == ["w2 set_link name=lan up=False"]


def test_what_stands_and_what_does_not_come_off(lab: ToyHypervisor) -> None:
    keeper = ToyKeeper("w2")
    keeper.apply("x1", "packet_loss", {})
    mine = hands(lab, {"w2": keeper})
    assert [one.id for one in mine.live("w2")] == ["x1"]
    keeper.residue = ("a qdisc",)
    with pytest.raises(LabError, match="w2: it does not come off: packet_loss: a qdisc"):
        mine.recover("w2", ("x1",))
    keeper.unreachable = True
    assert mine.live("w2") == ()
