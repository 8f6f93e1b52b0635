"""memory_corrected_errors: the memory controller corrects errors, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from labctl.hardware.bench import Bench
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log

_SENT = "sent"
_BANK = 9
"""A bank that kernels leave to the memory controller."""

_STATUS = 0x9C00_0040_0000_0090
"""Valid, enabled, with address; one corrected error; a read error of channel 0 (Intel SDM volume 3B, 15.9)."""

_MISC = 0x8C
"""The address is physical and good to 4 KiB."""


class Bank(Place):
    """A bank of machine check registers, and the address it will name."""

    address: int

    def describe(self) -> str:
        return f"machine check bank {_BANK}, address {self.address:#x}"


class MemoryCorrectedErrors(HardwareFault):
    """Corrected machine checks of one place in memory: nothing breaks, and a good operator takes note.

    The processor keeps each until the kernel reads its banks, which stock kernels do every five minutes, and more
    often once they have found something. What comes before that is overwritten, as in a real bank.
    """

    name: ClassVar[str] = "memory_corrected_errors"
    summary: ClassVar[str] = "memory errors that the hardware corrects and reports"
    operator_sees: ClassVar[str] = (
        "'mce: [Hardware Error]: Machine check events logged' with bank and address in the kernel log, minutes "
        "later; EDAC's counters where the kernel has them; no process notices"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"count": 20, "every_s": 60})
    place: ClassVar[type[Place]] = Bank
    holds: ClassVar[tuple[str, ...]] = ("machine check bank",)

    count: int = Field(default=1, ge=1, le=1000, description="how many")
    every_s: int = Field(default=30, ge=1, le=3600, description="seconds between two")
    page: int = Field(default=0x1234, ge=1, le=0xFFFF, description="number of the 4 KiB page that is named")

    def locate(self, bench: Bench) -> Bank:
        return Bank(address=self.page * 4096)

    def actions(self, place: Place) -> tuple[str, ...]:
        times = f", {self.count} times, every {self.every_s} s" if self.count > 1 else ""
        return (f"put a corrected error into the processor's {place.describe()}{times}",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's mce",
            covers=("the processor's machine check registers",),
            not_covered=("the memory itself: no byte changes", "EDAC's counters: cloud kernels have none"),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        when = "when the kernel next reads its banks, at most five minutes later"
        address = f"{place.address:x}" if isinstance(place, Bank) else "[0-9a-f]+"
        return (
            in_log("machine checks are logged", r"Machine check events logged", when),
            in_log("the bank", rf"CPU \d+: Machine Check: 0 Bank {_BANK}: ", when),
            in_log("the address", rf"ADDR {address}\b", when),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        if not isinstance(place, Bank):
            raise TypeError(f"{type(place).__name__} is no place of this fault")
        with bench.qmp() as qmp:
            qmp.monitor(f"mce 0 {_BANK} {_STATUS:#x} 0 {place.address:#x} {_MISC:#x}")
        bench.memory.put(_SENT, str(self._sent(bench) + 1))

    def _sent(self, bench: Bench) -> int:
        return int(bench.memory.get(_SENT) or 0)

    def phase(self, bench: Bench, place: Place, age_s: float) -> None:
        sent = self._sent(bench)
        if sent < self.count and age_s >= sent * self.every_s:
            self.plant(bench, place)

    def heal(self, bench: Bench, place: Place) -> None:
        """A corrected error is over. What waits in the bank is read and cleared by the kernel."""

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        return ()

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        sent = self._sent(bench)
        return Evidence(armed=sent > 0, hits=sent)
