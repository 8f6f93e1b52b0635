"""kernel_panic: the kernel of a node panics, and the node reboots or stays dead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Reversible, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue

from .countdown import (
    GONE,
    UNWRITTEN,
    AcceptDataLoss,
    AcceptReboot,
    DelayS,
    WholeMachine,
    countdown,
    countdown_evidence,
)

_CRASH_KERNEL = "/sys/kernel/kexec_crash_loaded"


class KernelPanic(Fault):
    """The kernel panics as at a bug of its own: nothing is written back, nothing is stopped.

    After `reboot_after_s` it boots again (kernel.panic); with 0 the machine stays as it is until somebody turns it
    off and on. The next start of the agent closes the injection and says which boot has ended.
    """

    name: ClassVar[str] = "kernel_panic"
    summary: ClassVar[str] = "the kernel panics; the node reboots after a while or stays dead"
    operator_sees: ClassVar[str] = "a node that is gone at once, a trace on its console, then another boot id"
    reversible: ClassVar[Reversible] = "reboot"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"accept_reboot": True, "accept_data_loss": True},)

    reboot_after_s: int = Field(
        default=10, ge=0, le=3600, description="seconds from the panic to the reboot; 0: it stays dead"
    )
    delay_s: DelayS = 3.0
    accept_reboot: AcceptReboot = False
    accept_data_loss: AcceptDataLoss = False

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("machine.own")

    def locate(self, reader: Reader, facts: Facts) -> WholeMachine:
        loaded = reader.exists(_CRASH_KERNEL) and reader.read_text(_CRASH_KERNEL).strip() == "1"
        return WholeMachine(boot_id=facts.boot_id, files=(_CRASH_KERNEL,) if loaded else ())

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        return (
            FileValue(path="/proc/sys/kernel/panic", value=str(self.reboot_after_s), default="0"),
            countdown(tag, "let the kernel panic", "end_machine", how="panic", after_s=self.delay_s),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, WholeMachine)
        warnings = []
        if self.reboot_after_s == 0:
            warnings.append("it does not come back by itself: its power has to be cut (labctl power)")
        if target.files:
            warnings.append("a crash kernel is loaded: it writes its dump, and then the node reboots")
        return PlanNotes(
            backend="sysrq", covers=("every process of the node, and this agent",), warnings=tuple(warnings),
            risks={"reboot": GONE, "data_loss": UNWRITTEN},
        )  # fmt: skip

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return (
            in_log(
                "the kernel says that it has panicked", "Kernel panic - not syncing: sysrq triggered crash",
                when="on its console, or in pstore: the log ends with it",
            ),
        )  # fmt: skip

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return countdown_evidence(reader, tag)
