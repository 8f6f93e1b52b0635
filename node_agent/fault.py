"""The words faults are written in: a fault, what it needs, where it lands, and the evidence it leaves.

A fault is a frozen pydantic model: its fields are its parameters, its class says how. One file a fault; the
command line, the schema, the documentation and the contract tests find it. See docs/adding-a-fault.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from node_agent.errors import Refusal
from node_agent.host import Reader
from node_agent.signs import Sign, SignSeen
from node_agent.steps.base import Step

TAG_PREFIX = "groundfault-"
"""Every kernel object the agent makes has this prefix and the id of its injection in its name."""

Model = TypeVar("Model", bound=BaseModel)

Reversible = Literal["yes", "manual", "reboot"]

RISKS = ("data_loss", "reboot")
"""What a user has to accept by a parameter `accept_…` of the fault before it is planted."""


def tag_of(injection_id: str) -> str:
    """The mark of one injection, for the names of what it makes."""
    return f"{TAG_PREFIX}{injection_id}"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Capability(_Value):
    """The answer of one probe: could this kernel do it just now, and if not, why and what would help."""

    name: str
    available: bool
    reason: str = ""
    remedy: str = ""


class Missing(_Value):
    """A capability a fault needs and the node lacks."""

    capability: str
    reason: str
    remedy: str


class Mount(_Value):
    """A mounted file system; `device` is "major:minor" as the kernel numbers it."""

    source: str
    target: str
    fstype: str
    options: str
    device: str


class Facts(_Value):
    """What is known of a node before anything is planned. Sizes in MiB."""

    node: str
    kernel: str
    boot_id: str
    os: str
    python: str
    agent_version: str
    cpus: int
    memory_mib: int
    mounts: tuple[Mount, ...]
    capabilities: Mapping[str, Capability] = Field(default_factory=dict)

    def can(self, capability: str) -> bool:
        """Whether a probe of that name succeeded on this node."""
        found = self.capabilities.get(capability)
        return found is not None and found.available

    def missing(self, *names: str) -> tuple[Missing, ...]:
        """Those of `names` that the node lacks, with reason and remedy."""
        lacking = (
            self.capabilities.get(n, Capability(name=n, available=False, reason="not probed")) for n in names
        )
        return tuple(
            Missing(capability=c.name, reason=c.reason, remedy=c.remedy) for c in lacking if not c.available
        )


class Target(_Value):
    """Where a fault lands on one node, found by looking. Each fault has its own subclass."""

    def describe(self) -> str:
        """One line for people."""
        raise NotImplementedError


class PlanNotes(_Value):
    """What the plan says beside its steps."""

    backend: str
    covers: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    risks: Mapping[str, str] = Field(default_factory=dict)
    """What no recovery brings back, in words, by the one of :data:`RISKS` that the user has to accept."""


def _readable(text: str) -> str:
    """Names of processes and files hold any bytes: what is no UTF-8 or not printable is shown as an escape."""
    known = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in known)


_Readable = Annotated[str, AfterValidator(_readable)]

MAX_SAMPLES = 32
"""Hits that one look at the evidence carries; how many there were in all says `hits`."""


class Hit(_Value):
    """One time a fault bit, as the kernel saw it.

    `sequence` counts up within an injection and may leave gaps (not every hit is kept); `time_us` is microseconds
    since the node booted, on the clock that also runs while it sleeps; `where` is a path or an address and
    `answer` what the caller got, such as EIO; both may be empty.
    """

    sequence: int = Field(ge=0, lt=2**64)
    time_us: int = Field(ge=0, lt=2**64)
    pid: int = Field(ge=0, lt=2**32)
    tid: int = Field(ge=0, lt=2**32)
    comm: _Readable
    call: _Readable
    where: _Readable = ""
    answer: _Readable = ""


def _latest(samples: tuple[Hit, ...]) -> tuple[Hit, ...]:
    return tuple(sorted(samples, key=lambda hit: hit.sequence)[-MAX_SAMPLES:])


class Evidence(_Value):
    """Kernel state that shows a fault: whether its objects are there, and how often it has bitten.

    `samples` are the latest hits, oldest first; of more than :data:`MAX_SAMPLES` the last are kept. `lost` says
    which data are gone or changed for good. `signs` are those the fault declares; the injector looks for them.
    """

    armed: bool
    hits: int
    counters: Mapping[str, int] = Field(default_factory=dict)
    log: tuple[str, ...] = ()
    log_gap: bool = False
    notes: tuple[str, ...] = ()
    samples: Annotated[tuple[Hit, ...], AfterValidator(_latest)] = ()
    lost: tuple[str, ...] = ()
    signs: tuple[SignSeen, ...] = ()


class Fault(BaseModel):
    """Base of all faults. Subclasses set the class variables, add fields, and say how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    summary: ClassVar[str]
    operator_sees: ClassVar[str]
    reversible: ClassVar[Reversible] = "yes"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    """Parameters worth showing: the documentation prints them and the contract tests run them."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="decides every random choice of this fault")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        """All capabilities that this fault with these parameters needs and the node lacks."""
        return ()

    def locate(self, reader: Reader, facts: Facts) -> Target:
        """Find where it lands; only looks. Raises :class:`node_agent.errors.Refusal` naming the field."""
        raise NotImplementedError

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        """The changes, in order. Pure. What they make is named after `tag`."""
        raise NotImplementedError

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        """Backend, coverage and warnings. Pure."""
        raise NotImplementedError

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        """What a real failure of this kind leaves for an operator to find. Pure.

        Without a target: the same in general, for the documentation, with `*` where a name would stand.
        """
        return ()

    def prove(self, reader: Reader, target: Target, tag: str) -> None:
        """Make the fault bite once where looking can do that (a read that must fail).

        Raises :class:`node_agent.errors.ApplyError` when it does not bite. Faults that only their victim can
        trigger leave this out: they are armed, with 0 hits so far.
        """

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        """Armed and hits, read from the kernel; log lines since `log_mark`."""
        raise NotImplementedError


def build_fault(cls: type[Model], parameters: Mapping[str, Any]) -> Model:
    """A fault of any kind from its parameters. Raises :class:`Refusal` with the first field that is wrong."""
    try:
        return cls.model_validate(dict(parameters))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "parameters"
        allowed = ""
        if first["type"] == "extra_forbidden":
            allowed = "fields: " + ", ".join(sorted(cls.model_fields))
        name = getattr(cls, "name", cls.__name__)
        raise Refusal(f"{name}: {field}: {first['msg']}", field=field, allowed=allowed) from None
