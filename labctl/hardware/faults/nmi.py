"""nmi: one non-maskable interrupt, of which no driver knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from labctl.hardware.bench import Bench
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log

_SENT = "sent"


class EveryProcessor(Place):
    """All processors of the machine."""

    def describe(self) -> str:
        return "all processors of the machine"


class Nmi(HardwareFault):
    """A non-maskable interrupt, as by the button of that name. It happens once; there is nothing to take back."""

    name: ClassVar[str] = "nmi"
    summary: ClassVar[str] = "a non-maskable interrupt for which the kernel knows no reason"
    operator_sees: ClassVar[str] = "'NMI received for unknown reason … Dazed and confused' in the kernel log"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = EveryProcessor
    holds: ClassVar[tuple[str, ...]] = ("NMI line",)

    def locate(self, bench: Bench) -> EveryProcessor:
        return EveryProcessor()

    def actions(self, place: Place) -> tuple[str, ...]:
        return ("raise one non-maskable interrupt",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's inject-nmi",
            covers=("every processor",),
            warnings=("a guest with kernel.unknown_nmi_panic=1 panics",),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        return (in_log("the kernel does not know why", r"NMI received for unknown reason"),)

    def plant(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            qmp.execute("inject-nmi")
        bench.memory.put(_SENT, "1")

    def heal(self, bench: Bench, place: Place) -> None:
        """An interrupt is over when it has been raised."""

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        return ()

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        sent = int(bench.memory.get(_SENT) or 0)
        return Evidence(armed=sent > 0, hits=sent)
