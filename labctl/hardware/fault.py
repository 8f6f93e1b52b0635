"""The words hardware faults are written in.

A hardware fault is to a machine what :class:`node_agent.fault.Fault` is to its kernel: a frozen model whose
fields are its parameters. It is planted in QEMU, from outside, and nothing in the guest shows who did it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from labctl.hardware.bench import Bench, Files
from node_agent.fault import Evidence, PlanNotes, Reversible
from node_agent.signs import Sign


class Place(BaseModel):
    """Where a fault lands on one machine. Each fault has its own subclass; the journal keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def describe(self) -> str:
        """One line for people."""
        raise NotImplementedError


class HardwareFault(BaseModel):
    """Base of all hardware faults. Subclasses set the class variables, add fields, and say how.

    `place` is the class of what `locate` returns. `holds` names the parts of the machine that the fault
    changes: two live faults never hold the same. `silences`: the agent cannot answer while it stands. `powers`:
    it ends or needs the machine's process, and its recovery gives power. `stands_in_for`: a fault of nodes that
    can be planted so, too. Times in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    operator_sees: ClassVar[str]
    reversible: ClassVar[Reversible] = "yes"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    place: ClassVar[type[Place]]
    holds: ClassVar[tuple[str, ...]]
    stands_in_for: ClassVar[str] = ""
    silences: ClassVar[bool] = False
    powers: ClassVar[bool] = False

    @classmethod
    def instead_of(cls, parameters: Mapping[str, Any], target: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The parameters that say the same as those of the fault it stands in for, whose located target is given.

        None where that cannot be said.
        """
        return None

    def locate(self, bench: Bench) -> Place:
        """Find where it lands; only looks. Raises :class:`labctl.errors.UsageError` naming the option."""
        raise NotImplementedError

    def actions(self, place: Place) -> tuple[str, ...]:
        """What will be done, one line each, for the plan. Pure."""
        raise NotImplementedError

    def notes(self, place: Place) -> PlanNotes:
        """Backend, coverage and warnings. Pure."""
        raise NotImplementedError

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        """What a real failure of this kind leaves in the guest. Pure; without a place: in general."""
        return ()

    def plant(self, bench: Bench, place: Place) -> None:
        """Make it so. Raises :class:`labctl.errors.LabError`; what was done until then is taken back by `heal`."""
        raise NotImplementedError

    def prove(self, bench: Bench, place: Place) -> None:
        """Make it bite once where looking can do that. Nothing is wrong where it cannot."""

    def heal(self, bench: Bench, place: Place) -> None:
        """Take it back, whatever was done of it; doing it twice is fine."""
        raise NotImplementedError

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        """What of it QEMU still shows after the recovery. Asked anew, never believed of an exit code."""
        raise NotImplementedError

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        """Armed and hits, read from QEMU."""
        raise NotImplementedError

    def settle(self, files: Files, place: Place, keep: bool) -> None:
        """The machine's process is gone: put its files right before another one opens them.

        `keep`: what the guest had written must be in its disks afterwards; otherwise they are thrown away next.
        Doing it twice is fine.
        """

    def phase(self, bench: Bench, place: Place, age_s: float) -> None:
        """Called once a second by the lab's watchdog while it stands: for faults that come and go."""
