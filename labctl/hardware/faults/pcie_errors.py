"""pcie_errors: the PCIe port of the lab network card reports errors of its link."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import Field

from labctl.errors import LabError, UnsupportedError
from labctl.hardware.bench import CARD_PORT, Bench, devices
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log, rises

SEEN_S = 15.0
_POLL_S = 0.3
_SENT = "sent"

_NONFATAL: Mapping[str, str] = MappingProxyType({
    "completion_timeout": "COMP_TIME",
    "completer_abort": "COMP_ABORT",
    "unexpected_completion": "UNX_COMP",
    "poisoned_tlp": "POISON_TLP",
})  # fmt: skip
_CORRECTABLE: Mapping[str, str] = MappingProxyType({
    "receiver_error": "RCVR",
    "bad_tlp": "BAD_TLP",
    "bad_dllp": "BAD_DLLP",
})  # fmt: skip
"""What QEMU calls them (hw/pci/pcie_aer.c)."""


class Port(Place):
    """A PCIe root port."""

    def describe(self) -> str:
        return f"PCIe port {CARD_PORT}, with the card of the lab network"


class PcieErrors(HardwareFault):
    """The port sends error messages, as Advanced Error Reporting (PCIe base specification, 6.2) defines them.

    One a second until there were `count` of them.
    """

    name: ClassVar[str] = "pcie_errors"
    summary: ClassVar[str] = "a PCIe port reports errors of its link"
    operator_sees: ClassVar[str] = (
        "'PCIe Bus Error: severity=…' with the port and the kind of error in the kernel log; aer_dev_* and "
        "aer_rootport_total_err_* of the port rise"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"error": "poisoned_tlp", "count": 5})
    place: ClassVar[type[Place]] = Port
    holds: ClassVar[tuple[str, ...]] = ("PCIe port's errors", "lab network card")

    error: Literal[
        "completion_timeout", "completer_abort", "unexpected_completion", "poisoned_tlp",
        "receiver_error", "bad_tlp", "bad_dllp",
    ] = Field(default="completion_timeout", description="the last three are corrected by the link")  # fmt: skip
    count: int = Field(default=1, ge=1, le=3600, description="how many, one a second")

    def locate(self, bench: Bench) -> Port:
        with bench.qmp() as qmp:
            if CARD_PORT not in devices(qmp):
                raise LabError(f"{bench.node.name} has no PCIe port {CARD_PORT}")
        return Port()

    @property
    def _corrected(self) -> bool:
        return self.error in _CORRECTABLE

    def actions(self, place: Place) -> tuple[str, ...]:
        times = f", {self.count} times, one a second" if self.count > 1 else ""
        return (f"have {CARD_PORT} report {self.error}{times}",)

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's pcie_aer_inject_error",
            covers=("the port's error registers and its interrupt",),
            not_covered=("traffic of the card: packets are not lost by it",),
            warnings=("not every QEMU delivers corrected errors: the plan cannot tell, planting does",)
            if self._corrected
            else (),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        kind = "cor" if self._corrected else "nonfatal"
        severity = "Correctable" if self._corrected else r"Uncorrectable \(Non-Fatal\)"
        return (
            in_log("the port's report", rf"PCIe Bus Error: severity={severity}"),
            rises("messages that reached the root port", f"/sys/bus/pci/devices/*/aer_rootport_total_err_{kind}"),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        before = bench.agent().observe(self.signs(place))[0]
        self._send(bench)
        deadline = time.monotonic() + SEEN_S
        while not bench.agent().observe(self.signs(place), before)[1][1].seen:
            if time.monotonic() > deadline:
                why = "corrected errors to the port" if self._corrected else "it to the port"
                raise UnsupportedError(f"this QEMU does not deliver {why}", "a newer QEMU, or another --error")
            time.sleep(_POLL_S)

    def _send(self, bench: Bench) -> None:
        flag, name = ("-c ", _CORRECTABLE[self.error]) if self._corrected else ("", _NONFATAL[self.error])
        with bench.qmp() as qmp:
            said = qmp.monitor(f"pcie_aer_inject_error {flag}{CARD_PORT} {name}")
        if not said.startswith("OK"):
            raise LabError(f"QEMU refused the error: {said.strip()}")
        bench.memory.put(_SENT, str(self._sent(bench) + 1))

    def _sent(self, bench: Bench) -> int:
        return int(bench.memory.get(_SENT) or 0)

    def phase(self, bench: Bench, place: Place, age_s: float) -> None:
        if self._sent(bench) < min(self.count, age_s):
            self._send(bench)

    def heal(self, bench: Bench, place: Place) -> None:
        """Messages are over when they have been sent; the kernel has cleared the registers."""

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        return ()

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        sent = self._sent(bench)
        return Evidence(armed=sent > 0, hits=sent)
