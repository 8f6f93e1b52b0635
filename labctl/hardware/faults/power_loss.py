"""power_loss: the machine loses its power, without a shutdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from labctl.hardware.bench import Bench
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log


class WholeMachine(Place):
    """The machine as a whole."""

    def describe(self) -> str:
        return "the whole machine"


class PowerLoss(HardwareFault):
    """The machine's process is killed: what the guest had not flushed to its disks is lost.

    Recovery gives power: the guest boots from its disks as they are. Injections of the node's agent end with that
    boot, and so do other hardware faults of the machine.
    """

    name: ClassVar[str] = "power_loss"
    summary: ClassVar[str] = "the node dies without a shutdown and stays off until recovery"
    operator_sees: ClassVar[str] = (
        "the node answers nothing; after its boot the logs end in the middle, file systems recover journals, "
        "and what was not flushed is gone"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = WholeMachine
    holds: ClassVar[tuple[str, ...]] = ("machine",)
    silences: ClassVar[bool] = True
    powers: ClassVar[bool] = True

    def locate(self, bench: Bench) -> WholeMachine:
        return WholeMachine()

    def actions(self, place: Place) -> tuple[str, ...]:
        return ("kill the machine's process; recovery boots it from its disks as they are",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="the end of the QEMU process",
            covers=("everything in memory, and writes that no flush followed",),
            warnings=(
                "what the node has not flushed is lost for good",
                "other injections on the node end: the agent's at its next start, hardware faults at the boot",
            ),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        recovered = r"EXT4-fs \(.*\): (?:recovery complete|\d+ orphan)|XFS \(.*\): (?:Starting|Ending) recovery"
        return (in_log("a file system recovers its journal", recovered, "at the boot after it"),)

    def plant(self, bench: Bench, place: Place) -> None:
        bench.power.off()

    def heal(self, bench: Bench, place: Place) -> None:
        bench.power.on()

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        return () if bench.power.process() else ("the machine is off",)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        off = not bench.power.process()
        return Evidence(armed=off, hits=1)
