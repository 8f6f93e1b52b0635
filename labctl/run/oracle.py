"""An oracle: it looks at the lab, and judges what it saw. Looking and judging are apart.

What was looked at is kept in the record as data, so that a verdict can be worked out again without a lab. An
oracle looks at the gate (how it was when all was well) and after the repair; it judges the second by the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from labctl.errors import LabctlError
from labctl.run.ledger import Line
from labctl.run.verdict import Aspect, Finding, Outcome

Seen = Mapping[str, Any]
"""What an oracle saw, as JSON data."""

AT_ONCE = 4
"""Oracles that look at the same time; each may ask all nodes at once, and an SSH connection has ten sessions."""


class Output(Protocol):
    """How a command on a node ended."""

    @property
    def status(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


class Lookout(Protocol):
    """The lab as oracles see it: nothing here changes anything. Oracles ask it from several threads at once."""

    @property
    def nodes(self) -> tuple[str, ...]: ...
    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        """Run a script on a node as root. Raises :class:`labctl.errors.LabError` where it does not answer."""

    def python(self, node: str, program: str, given: str, *, timeout_s: float = 60.0) -> Output:
        """Run a Python program on a node as root, `given` as its argument. Raises as :meth:`sh`."""


class Window(BaseModel):
    """The time over which things have to hold, in seconds since the start of the load, and the load's ledger.

    `looked_s`: when the oracles began to look; they were done by `end_s`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    begin_s: float
    end_s: float
    looked_s: float | None = None
    lines: tuple[Line, ...] = ()

    @property
    def looked(self) -> float:
        """When the oracles began to look; the end, where nobody said."""
        return self.end_s if self.looked_s is None else self.looked_s


class Oracle(BaseModel):
    """Base of all oracles: frozen, its fields are its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def name(self) -> str:
        """Its name in the record; two oracles of one problem never share it."""
        raise NotImplementedError

    @property
    def aspect(self) -> Aspect:
        """What its finding is about."""
        raise NotImplementedError

    @property
    def turn(self) -> int:
        """When it looks: those of one turn together, and what others would disturb by looking comes first. 0 for
        how busy nodes are, 1 for times, 2 for all else.
        """
        return 2

    @property
    def moves(self) -> bool:
        """Whether it sees what requests have done; if not, it sees the same at each gate of a snapshot."""
        return False

    def look(self, lab: Lookout) -> Seen:
        """What is there now. Raises :class:`LabctlError` where it cannot see."""
        return {}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        """The finding. Pure. `before` is what it saw at the gate; there, both are the same."""
        raise NotImplementedError

    def found(self, outcome: Outcome, *reasons: str, **measures: float | int | str) -> Finding:
        """A finding of this oracle."""
        return Finding(oracle=self.name, aspect=self.aspect, outcome=outcome, reasons=reasons, measures=measures)


class Sight(BaseModel):
    """What all oracles of a problem saw at one moment: what each saw, and why some could not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seen: Mapping[str, Seen]
    blind: Mapping[str, str]


def look_all(oracles: Sequence[Oracle], lab: Lookout) -> Sight:
    """Let all oracles look, turn by turn, several at once. One that cannot, or crashes, is blind: that is never
    the fault of the service.
    """
    found: dict[str, tuple[Seen, str]] = {}
    with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="oracle") as pool:
        for turn in sorted({oracle.turn for oracle in oracles}):
            mine = [oracle for oracle in oracles if oracle.turn == turn]
            found |= zip([o.name for o in mine], pool.map(lambda oracle: _look(oracle, lab), mine), strict=True)
    seen = {o.name: found[o.name][0] for o in oracles if not found[o.name][1]}
    return Sight(seen=seen, blind={o.name: found[o.name][1] for o in oracles if found[o.name][1]})


def look_for(aspects: Collection[Aspect], oracles: Sequence[Oracle], lab: Lookout) -> Sight:
    """Let those look that see one of these aspects; the others say that nobody asked them."""
    asked = look_all([oracle for oracle in oracles if oracle.aspect in aspects], lab)
    others = {oracle.name: "nobody asked" for oracle in oracles if oracle.aspect not in aspects}
    return Sight(seen=asked.seen, blind={**asked.blind, **others})


def _look(oracle: Oracle, lab: Lookout) -> tuple[Seen, str]:
    """What it saw, and why it could not see."""
    try:
        return oracle.look(lab), ""
    except LabctlError as error:
        return {}, error.message
    except Exception as error:  # noqa: BLE001 - a bug in an oracle is UNKNOWN, and is told
        return {}, _crash(error)


def judge_all(oracles: Sequence[Oracle], before: Sight, after: Sight, window: Window) -> tuple[Finding, ...]:
    """The findings of all oracles, also from a record, without a lab."""
    return tuple(_judge(oracle, before, after, window) for oracle in oracles)


def _judge(oracle: Oracle, before: Sight, after: Sight, window: Window) -> Finding:
    for when, sight in (("at the gate", before), ("after the repair", after)):
        if oracle.name not in sight.seen:
            reason = sight.blind.get(oracle.name, "it did not look")
            return oracle.found(Outcome.UNKNOWN, f"it could not see {when}: {reason}")
    try:
        return oracle.judge(before.seen[oracle.name], after.seen[oracle.name], window)
    except Exception as error:  # noqa: BLE001 - a bug in an oracle is UNKNOWN, and is told
        return oracle.found(Outcome.UNKNOWN, f"it could not judge: {_crash(error)}")


def _crash(error: Exception) -> str:
    return f"the oracle crashed: {type(error).__name__}: {error}"
