"""A problem, P = (E, I, F, O): environment, the solver's interface, faults, oracles. One file each, as data.

What a solver can see of a problem names symptoms, never the cause: its name, its title, its statement, its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from labctl.run.diagnosis import Triple, Vocabulary
from labctl.run.oracle import Oracle

Surface = Literal["confined", "shell", "root"]
"""Only the tools of the interface; an on-call account with the rights of an operator; root."""

Mode = Literal["single", "concurrent", "correlated", "metastable", "no_fault"]
DEFAULT_LIMIT_S = 1800.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Planted(_Value):
    """A fault of a problem: an instance of its class, where, and when after the gate.

    `ends_after_s`: it ends by itself after so long, as the trigger of a metastable failure does; 0: it stays until
    the episode is over, or a repair ends it. `bites_within_s`: how long it may take to its first hit; without one
    the run is void.
    """

    fault: BaseModel
    node: str
    at_s: float = Field(default=0.0, ge=0)
    ends_after_s: float = Field(default=0.0, ge=0)
    bites_within_s: float = Field(default=60.0, gt=0)

    @field_validator("fault")
    @classmethod
    def _a_fault(cls, value: BaseModel) -> BaseModel:
        if not isinstance(getattr(type(value), "name", None), str):
            raise ValueError("give an instance of a fault class")  # noqa: TRY004 - pydantic wants it
        return value

    @property
    def name(self) -> str:
        """The fault's name in the catalogue."""
        return str(getattr(type(self.fault), "name"))  # noqa: B009 - of either catalogue

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Its parameters as JSON data."""
        return self.fault.model_dump(mode="json")


class Script(_Value):
    """What a scripted solver does: commands of the on-call account on nodes, hardware actions, then the diagnosis.

    `declares`: whether it says at the end that the repair is complete; a decoy may well do so.
    """

    title: str
    steps: tuple[tuple[str, str], ...] = ()
    """(where, what): a node and a shell script there, or "hardware" and an action such as "replace-disk w2"."""

    diagnosis: tuple[Triple, ...] | None = None
    healthy: bool = False
    declares: bool = True


class Decoy(_Value):
    """A wrong repair that a problem must see through, and the class of failure it has to end as."""

    script: Script
    fails_as: Literal[
        "never_declared", "off_the_permitted_list", "cause_left", "did_not_last", "out_of_bounds", "integrity"
    ]


class Permitted(_Value):
    """What a repair may change. Everything else that is watched has to be as it was: globs, `node:thing`.

    Such as `w2:unit postgresql@*`, `w2:file /etc/postgresql/**`, `w2:package *`, `table bookings`.
    """

    changes: tuple[str, ...] = ()


class Problem(_Value):
    """See the module. `reference` repairs it; `alternative` repairs it another way, where there is one."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{2,60}$")
    title: str
    statement: str
    mode: Mode = "single"
    workload: str = "booking"
    surface: Surface = "shell"
    limit_s: float = Field(default=DEFAULT_LIMIT_S, gt=0)
    cause: frozenset[Triple] = frozenset()
    root_cause: str
    vocabulary: Vocabulary
    faults: tuple[Planted, ...] = ()
    oracles: tuple[Oracle, ...] = Field(min_length=1)
    permitted: Permitted = Permitted()
    challenge: tuple[tuple[str, str], ...] = ()
    """(node, script): what happens again after the repair, such as a restart of what was touched."""

    trigger_again: bool = False
    """Whether the challenge also plants the faults that had ended by themselves once more."""

    reference: Script
    alternative: Script | None = None
    decoys: tuple[Decoy, ...] = ()
    case: str = ""
    """The real incident it is grown from."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Problem:
        self.vocabulary.check(self.cause)
        if (self.mode == "no_fault") != (not self.faults):
            raise ValueError("faults: none for no_fault, and at least one otherwise")
        if (self.mode == "no_fault") != (not self.cause):
            raise ValueError("cause: none for no_fault, and at least one triple otherwise")
        names = [oracle.name for oracle in self.oracles]
        if len({*names}) != len(names):
            raise ValueError("oracles: two have one name")
        return self
