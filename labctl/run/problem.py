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
Noise = Literal["calm", "usual", "heavy"]
"""How much goes on beside the faults that has nothing to do with them."""

DEFAULT_LIMIT_S = 1800.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Planted(_Value):
    """A fault of a problem: an instance of its class, where, and when after the gate.

    `ends_after_s`: it ends by itself after so long, as the trigger of a metastable failure does; 0: it stays until
    the episode is over, or a repair ends it. `bites_within_s`: how long it may take to its first hit; without one
    the run is void. `may_stay`: a right repair may leave it standing and biting (a node that is lost for good);
    otherwise one that still bites in the soak is a cause that was left, whatever the clients say.

    Scripts run on the node as root. `finds`: a parameter, and a script that prints its value, such as the file
    that a table is in. `first` and `then` run right before and right after: what makes the fault matter, such as a
    restart that empties caches. `shows`: it ends with 0 once the fault is felt; it counts instead of the hits, for
    faults that count none and for those where a hit alone hurts nobody.
    """

    fault: BaseModel
    node: str
    at_s: float = Field(default=0.0, ge=0)
    ends_after_s: float = Field(default=0.0, ge=0)
    bites_within_s: float = Field(default=60.0, gt=0)
    may_stay: bool = False
    finds: tuple[str, str] | None = None
    first: str = ""
    then: str = ""
    shows: str = ""

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

    def found(self, value: str) -> Planted:
        """The same, with the value of the parameter that it finds. Raises :class:`ValueError` for a bad one."""
        assert self.finds is not None
        fault = type(self.fault).model_validate({**self.fault.model_dump(), self.finds[0]: value})
        return self.model_copy(update={"fault": fault, "finds": None})


class Script(_Value):
    """What a scripted solver does: commands of the on-call account on nodes, hardware actions, then the diagnosis.

    `declares`: whether it says at the end that the repair is complete; a decoy may well do so.
    """

    title: str
    steps: tuple[tuple[str, str], ...] = ()
    """(where, what): a node and a shell script there, run by the on-call account; "hardware" and an action such as
    "replace-disk w2"; "wait" and seconds; or "desk" and a shell script in the solver's own directory, from where
    it reaches all nodes (`ssh -F ssh_config w2`). A script that fails does not end the others: as with people.
    """

    diagnosis: tuple[Triple, ...] | None = None
    """What it submits; None: of the reference and the alternative the cause, of a decoy nothing."""

    healthy: bool = False
    declares: bool = True


class Decoy(_Value):
    """A wrong repair that a problem must see through, and the class of failure it has to end as.

    `out_of_bounds` and `did_not_last` count as one: which of them it is may depend on the moment.
    """

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
    """(node, script): what happens again after the repair, such as a restart of what was touched, run as root; or
    ("hardware", "power-cycle w2")."""

    trigger_again: bool = False
    """Whether the challenge also plants the faults that had ended by themselves once more."""

    reference: Script
    alternative: Script | None = None
    decoys: tuple[Decoy, ...] = ()
    clients: str = Field(default="", pattern=r"^([a-z_][a-z0-9_.]*:[a-z_]+)?$")
    """The load plan of its clients, as "module:function"; none: the workload's."""

    noise: Noise = "calm"
    """The noise it is run with where nobody says otherwise. A healthy but noisy service has some."""

    avoid: tuple[str, ...] = ()
    """Nodes that noise keeps away from, beside those of the faults."""

    soak_s: float = Field(default=0.0, ge=0)
    """A soak of at least so long, where what comes again takes its time."""

    case: str = ""
    """The real incident it is grown from."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Problem:
        self.vocabulary.check(self.cause)
        stay = [one for one in self.faults if not one.ends_after_s]
        if self.mode == "no_fault" and stay:
            raise ValueError("faults: those of no_fault end by themselves before anybody looks: ends_after_s")
        if self.mode != "no_fault" and not self.faults:
            raise ValueError("faults: none for no_fault, and at least one otherwise")
        if self.mode == "metastable" and stay:
            raise ValueError("faults: those of metastable are triggers: ends_after_s")
        if (self.mode == "no_fault") != (not self.cause):
            raise ValueError("cause: none for no_fault, and at least one triple otherwise")
        names = [oracle.name for oracle in self.oracles]
        if len({*names}) != len(names):
            raise ValueError("oracles: two have one name")
        return self
