"""nic_removed: the card of the lab network is unplugged from its PCIe port, and plugged in again later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from labctl.errors import LabError
from labctl.hardware.bench import CARD, CARD_PORT, Bench, devices
from labctl.hardware.cards import await_carrier, plug, unplug
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log

GONE_S = 60.0
BACK_S = 60.0


class Socket(Place):
    """The PCIe port and the address of the card."""

    mac: str

    def describe(self) -> str:
        return f"{CARD} ({self.mac}) in port {CARD_PORT}"


class NicRemoved(HardwareFault):
    """The card is gone, with its interface, addresses and routes. Recovery plugs the same card in again.

    The guest takes part: it is asked to let the card go, as by a slot's attention button, and may take a while.
    """

    name: ClassVar[str] = "nic_removed"
    summary: ClassVar[str] = "the card of the lab network is unplugged"
    operator_sees: ClassVar[str] = (
        "the interface is gone with its addresses and routes; lspci shows the port empty; when the card is back "
        "the kernel log shows a new PCI device and the interface has another index"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = Socket
    holds: ClassVar[tuple[str, ...]] = ("lab network card",)

    def locate(self, bench: Bench) -> Socket:
        with bench.qmp() as qmp:
            if CARD not in devices(qmp):
                raise LabError(f"{bench.node.name} has no card {CARD}")
            return Socket(mac=qmp.execute("qom-get", path=f"/machine/peripheral/{CARD}", property="mac"))

    def actions(self, place: Place) -> tuple[str, ...]:
        return (f"unplug {CARD} from {CARD_PORT}; recovery plugs it in again",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's device_del behind a PCIe port",
            covers=("the lab network of the node",),
            not_covered=("the control network: labctl goes on reaching the node",),
            warnings=("what was set on the interface beside its addresses (qdiscs, rules) is gone for good",),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        back = "when the card is plugged in again"
        return (in_log("a PCI device is found", r"pci 0000:\d\d:\d\d\.\d: \[1af4:1041\]", back),)

    def plant(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            if not unplug(qmp, GONE_S):
                raise LabError(f"the guest did not let the card go within {GONE_S:.0f} s")

    def heal(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            plug(qmp, _ours(place).mac)

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        with bench.qmp() as qmp:
            if CARD not in devices(qmp):
                return (f"{CARD} is not plugged in",)
        return () if await_carrier(bench, BACK_S) else (f"the guest's {CARD} has no carrier",)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        with bench.qmp() as qmp:
            gone = CARD not in devices(qmp)
        return Evidence(armed=gone, hits=int(gone))


def _ours(place: Place) -> Socket:
    if not isinstance(place, Socket):
        raise TypeError(f"{type(place).__name__} is no place of this fault")
    return place
