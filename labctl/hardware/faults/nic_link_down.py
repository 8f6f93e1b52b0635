"""nic_link_down: the card of the lab network has no carrier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from labctl.hardware.bench import CARD, Bench
from labctl.hardware.cards import await_carrier, carrier_signs, has_carrier
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign

SEEN_S = 20.0
_HAD = "had_carrier"


class Cable(Place):
    """The cable of the lab network."""

    def describe(self) -> str:
        return f"the link of {CARD}"


class NicLinkDown(HardwareFault):
    """The carrier is lost at the device, as with a pulled cable or a dead switch port."""

    name: ClassVar[str] = "nic_link_down"
    summary: ClassVar[str] = "the card of the lab network loses its carrier"
    operator_sees: ClassVar[str] = (
        "NO-CARRIER and state DOWN in ip link, carrier_down_count rises; addresses and routes stay; nothing in "
        "the kernel log, because the virtio driver says nothing; peers see silence"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = Cable
    holds: ClassVar[tuple[str, ...]] = ("lab network card",)

    def locate(self, bench: Bench) -> Cable:
        return Cable()

    def actions(self, place: Place) -> tuple[str, ...]:
        return (f"take the link of {CARD} down in the device",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's set_link",
            covers=("both directions of the lab network",),
            not_covered=("the control network: labctl goes on reaching the node",),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        return carrier_signs()

    def plant(self, bench: Bench, place: Place) -> None:
        bench.memory.put(_HAD, "yes" if has_carrier(bench) else "no")
        self._link(bench, up=False)
        await_carrier(bench, SEEN_S, wanted=False)

    def heal(self, bench: Bench, place: Place) -> None:
        self._link(bench, up=True)

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        if bench.memory.get(_HAD) != "yes" or await_carrier(bench, SEEN_S):
            return ()
        return (f"{CARD} has no carrier",)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        down = not has_carrier(bench)
        return Evidence(armed=down, hits=int(down), counters={"carrier": int(not down)})

    def _link(self, bench: Bench, *, up: bool) -> None:
        with bench.qmp() as qmp:
            qmp.execute("set_link", name=CARD, up=up)
