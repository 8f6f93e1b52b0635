"""reboot: a node reboots, in order or at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Reversible, Target
from node_agent.host import Reader
from node_agent.steps import Step

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


class Reboot(Fault):
    """The node reboots: `graceful` as `systemctl reboot` does it, `hard` as with the reset button.

    Graceful, services are stopped first, this agent among them, which takes back whatever else it has planted.
    Hard, nothing is stopped or written back.
    """

    name: ClassVar[str] = "reboot"
    summary: ClassVar[str] = "the node reboots, in order or as by its reset button"
    operator_sees: ClassVar[str] = "a node that is gone for a while and comes back with another boot id"
    reversible: ClassVar[Reversible] = "reboot"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"accept_reboot": True},
        {"how": "hard", "accept_reboot": True, "accept_data_loss": True},
    )

    how: Literal["graceful", "hard"] = Field(
        default="graceful", description="graceful: services are stopped first; hard: nothing is, at once"
    )
    delay_s: DelayS = 3.0
    accept_reboot: AcceptReboot = False
    accept_data_loss: AcceptDataLoss = False

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("machine.own")

    def locate(self, reader: Reader, facts: Facts) -> WholeMachine:
        if self.how == "graceful" and not reader.exists("/run/systemd/system"):
            raise Refusal("how: systemd does not run here, and nobody else is asked", field="how", allowed="hard")
        return WholeMachine(boot_id=facts.boot_id)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        how = "reset" if self.how == "hard" else "reboot"
        return (countdown(tag, f"reboot, {self.how}", "end_machine", how=how, after_s=self.delay_s),)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        hard = self.how == "hard"
        late = "once systemd has begun, recovering it is too late"
        return PlanNotes(
            backend="sysrq" if hard else "systemd",
            covers=("every process of the node, and this agent",),
            warnings=() if hard else (late,),
            risks={"reboot": GONE, **({"data_loss": UNWRITTEN} if hard else {})},
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return countdown_evidence(reader, tag)
