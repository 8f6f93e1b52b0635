"""An injection: a fault applied once, and what the agent tells of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.journal import Entry
from node_agent.leases import Backoff
from node_agent.signs import Mark
from node_agent.steps.base import Step
from node_agent.undo import Applied

ID_PATTERN = r"^[a-z0-9][a-z0-9-]{2,31}$"


def checked_id(text: str) -> str:
    """The id itself. Raises :class:`Refusal` where it is none."""
    if not re.match(ID_PATTERN, text):
        raise Refusal(f"id: {text!r}", field="id", allowed=f"pattern {ID_PATTERN}")
    return text


InjectionState = Literal["planned", "applying", "active", "recovering", "recovered", "stuck"]
ENDED: tuple[InjectionState, ...] = ("recovered",)


class Plan(BaseModel):
    """What an injection would do, before anything happens."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    fault: Fault
    facts: Facts
    target: Target | None
    notes: PlanNotes
    steps: tuple[Step, ...]
    missing: tuple[Missing, ...] = ()


class InjectionView(BaseModel):
    """An injection as it stands. Times in seconds."""

    model_config = ConfigDict(frozen=True)

    id: str
    node: str
    fault: str
    parameters: Mapping[str, Any]
    state: InjectionState
    target: str
    backend: str
    lease_s: float
    expires_in_s: float
    age_s: float
    evidence: Evidence | None = None
    residue: tuple[str, ...] = ()
    data_lost: tuple[str, ...] = ()
    """What no recovery brings back; also of one that is recovered."""
    reason: str = ""
    error: str = ""


@dataclass
class Live:
    """What the agent knows of one injection while it runs. Kept after its end for `list`."""

    id: str
    fault: str
    parameters: Mapping[str, Any]
    entry: Entry
    lease_s: float
    began: float
    expires: float
    state: InjectionState = "planned"
    model: Fault | None = None
    target: Target | None = None
    target_text: str = ""
    backend: str = ""
    mark: Mark = field(default_factory=Mark)
    risks: Mapping[str, str] = field(default_factory=dict)
    applied: list[Applied] = field(default_factory=list)
    evidence: Evidence | None = None
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    reason: str = ""
    error: str = ""
    rebooted: bool = False
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def touched(self) -> set[tuple[str, str]]:
        """The (category, item) pairs of host state that its steps change."""
        return {(r.kind, r.name) for one in self.applied for r in one.step.resources()}
