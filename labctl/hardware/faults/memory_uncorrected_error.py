"""memory_uncorrected_error: a page of memory holds what cannot be corrected."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from labctl.hardware.bench import Bench
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes

SEEN_S = 15.0
_POLL_S = 0.2
_SENT, _BEGIN = "sent", "console"
_BANK = 9

_STATUS = 0xBD00_0000_0000_00C0
"""Valid, uncorrected, enabled, with address and miscellaneous, signalled: found by the memory scrubber, action
optional (Intel SDM volume 3B, 15.9.3.1)."""

_GLOBAL = 0x5
"""A machine check is in progress, and the interrupted program could go on."""

_MISC = 0x8C


class Page(Place):
    """A page of physical memory."""

    address: int

    def describe(self) -> str:
        return f"the page of memory at {self.address:#x}"


class MemoryUncorrectedError(HardwareFault):
    """A machine check that is not corrected, on all processors at once.

    What follows is the guest kernel's own decision. The emulated processor is of a family for which Linux knows no
    recovery, so it panics. A kernel that knows one for its processor may end the page's users with SIGBUS instead;
    that has not been tried. The recovery is a power cycle.
    """

    name: ClassVar[str] = "memory_uncorrected_error"
    summary: ClassVar[str] = "a memory error that cannot be corrected: the kernel panics"
    operator_sees: ClassVar[str] = (
        "on the console: 'mce: [Hardware Error]: Machine check: Uncorrected error', the bank and the address, "
        "'Kernel panic - not syncing: Fatal local machine check'; the node answers nothing more"
    )
    reversible: ClassVar[Any] = "reboot"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]] = Page
    holds: ClassVar[tuple[str, ...]] = ("machine",)
    silences: ClassVar[bool] = True
    powers: ClassVar[bool] = True

    page: int = Field(default=0x8000, ge=1, le=0xFFFF, description="number of the 4 KiB page that is bad")

    def locate(self, bench: Bench) -> Page:
        return Page(address=self.page * 4096)

    def actions(self, place: Place) -> tuple[str, ...]:
        return (
            f"raise an uncorrected machine check for {place.describe()} on all processors",
            "recovery: cut the power and boot",
        )

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's mce",
            covers=("the processors' machine check registers and the exception",),
            warnings=(
                "what the node has not flushed is lost for good",
                "other injections on the node end: the agent's at its next start, hardware faults at the boot",
            ),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        if not isinstance(place, Page):
            raise TypeError(f"{type(place).__name__} is no place of this fault")
        console = bench.files.places.console
        bench.memory.put(_BEGIN, str(console.stat().st_size if console.exists() else 0))
        bench.memory.put(_SENT, "1")
        with bench.qmp() as qmp:
            qmp.monitor(f"mce -b 0 {_BANK} {_STATUS:#x} {_GLOBAL:#x} {place.address:#x} {_MISC:#x}")

    def prove(self, bench: Bench, place: Place) -> None:
        deadline = time.monotonic() + SEEN_S
        while not any("Kernel panic" in line for line in self._lines(bench)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _lines(self, bench: Bench) -> tuple[str, ...]:
        """What the console has said of it since."""
        console = bench.files.places.console
        if not console.exists():
            return ()
        with console.open("rb") as handle:
            handle.seek(int(bench.memory.get(_BEGIN) or 0))
            text = handle.read().decode(errors="replace")
        wanted = ("Hardware Error", "Kernel panic", "Memory failure")
        return tuple(line.strip() for line in text.splitlines() if any(word in line for word in wanted))

    def heal(self, bench: Bench, place: Place) -> None:
        if bench.memory.get(_SENT):
            bench.power.off()
            bench.memory.put(_SENT, "")
        bench.power.on()

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        return () if bench.power.process() else ("the machine is off",)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        lines = self._lines(bench)
        panicked = int(any("Kernel panic" in line for line in lines))
        return Evidence(armed=bool(bench.memory.get(_SENT)), hits=1, log=lines, counters={"panicked": panicked})
