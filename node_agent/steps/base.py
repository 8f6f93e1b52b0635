"""A step: one reversible change to a machine, as data.

A step can be printed, compared and stored before anything happens. It has three verbs: `capture` reads what
is there now (the undo), `apply` changes it, `revert` takes back what this step made and restores what it
changed, nothing else. `leftovers` then reads the kernel and says what is still there: an undo is believed
when that is empty, never because a command ended well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from node_agent.host import Host, Reader

Undo = dict[str, Any]
"""What `capture` saw, as JSON data: written to the journal before `apply`."""


@dataclass(frozen=True)
class Resource:
    """A thing only one live injection may hold: a name, or a range of one (end exclusive).

    Two resources conflict when kind and name agree and their ranges overlap.
    """

    kind: str
    name: str
    start: int = 0
    end: int = 1

    def conflicts(self, other: Resource) -> bool:
        same = (self.kind, self.name) == (other.kind, other.name)
        return same and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        span = "" if (self.start, self.end) == (0, 1) else f" [{self.start}, {self.end})"
        return f"{self.kind} {self.name}{span}"


class Step(BaseModel):
    """Base of the closed set of steps. Subclasses add fields and a literal `kind`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    volatile: ClassVar[bool] = True
    """Whether a reboot undoes this step by itself."""

    def describe(self) -> str:
        """One line for people: what apply will do."""
        raise NotImplementedError

    def resources(self) -> tuple[Resource, ...]:
        """What this step needs for itself as long as the injection lives."""
        return ()

    def capture(self, reader: Reader) -> Undo:
        """What has to be known to take this step back.

        Raises :class:`node_agent.errors.ConflictError` where applying would clobber something foreign.
        """
        raise NotImplementedError

    def apply(self, host: Host) -> None:
        """Make the change. May raise anything: the injector then reverts."""
        raise NotImplementedError

    def hold(self, host: Host, expires: float) -> None:
        """The injection will end at `expires`, seconds since boot: tell the kernel, where it can end it itself.

        Called once the fault is active, and again whenever its lease changes.
        """

    def revert(self, host: Host, undo: Undo | None) -> None:
        """Take the change back. Twice equals once; a step that never happened, or half, is fine.

        `undo` is None when its journal record was unreadable: do what the step's own data allow.
        """
        raise NotImplementedError

    def heal(self, host: Host, undo: Undo | None) -> tuple[str, ...]:
        """After every step of the injection is reverted: bring back what the fault made the system itself do, such
        as a file system that went read-only. Returns which data are lost for good. Twice equals once.
        """
        return ()

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        """What kernel state still shows of this step; empty when it is gone."""
        raise NotImplementedError
