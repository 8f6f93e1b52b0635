"""node_frozen: the machine stands still, and later goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from labctl.hardware.bench import Bench
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes


class Processors(Place):
    """All processors of the machine."""

    def describe(self) -> str:
        return "all processors of the machine"


class NodeFrozen(HardwareFault):
    """All processors stop, with all clocks of the guest. Recovery lets them go on and sets the wall clock."""

    name: ClassVar[str] = "node_frozen"
    summary: ClassVar[str] = "the machine stops in the middle of everything and resumes later"
    operator_sees: ClassVar[str] = (
        "the node answers nothing, its connections stay open; afterwards its clock is behind, its leases and "
        "sessions are lost, and its own logs show only a jump of the time"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = Processors
    holds: ClassVar[tuple[str, ...]] = ("machine",)
    silences: ClassVar[bool] = True

    def locate(self, bench: Bench) -> Processors:
        return Processors()

    def actions(self, place: Place) -> tuple[str, ...]:
        return ("stop the processors; recovery lets them go on and sets the guest's wall clock",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's stop",
            covers=("every process, every timer, every packet to the node",),
            not_covered=("the guest's own clocks: they stand, too, and see no gap until the wall clock is set",),
            warnings=("leases of the agent's injections on the node stand still meanwhile",),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            qmp.execute("stop")

    def heal(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            qmp.execute("cont")
        bench.ready()

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        status = self._status(bench)
        return () if status == "running" else (f"the machine is {status}",)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        return Evidence(armed=self._status(bench) == "paused", hits=1)

    def _status(self, bench: Bench) -> str:
        with bench.qmp() as qmp:
            return str(qmp.execute("query-status")["status"])
