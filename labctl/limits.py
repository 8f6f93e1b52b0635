"""How much may be broken at once in a lab: limits, how much of each is used, what one more fault would make of it.

Pure, but for the file with the limits, which lies beside the lab's record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import LabError
from labctl.lab.files import write_atomic
from labctl.lab.model import Node

QUORUM_LABEL = "quorum"
"""Nodes whose label of this key has the same value keep a quorum together."""

SMALLEST_QUORUM = 3
"""A group of one or two nodes survives no fault anyway, so there is nothing to guard."""

Quorum = Literal["off", "labels", "lab"]
"""Which groups are guarded: none; those that are labelled; those, and the whole lab."""


class Limits(BaseModel):
    """The limits of a lab; None: no limit. An injection on several nodes is one fault of the lab."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int | None = Field(default=None, ge=1)
    faults: int | None = Field(default=None, ge=1)
    faults_per_node: int | None = Field(default=None, ge=1)
    quorum: Quorum = "labels"


DEFAULTS: Mapping[str, Limits] = {"ssh": Limits(faults_per_node=8, quorum="lab")}
"""By provider. Machines that somebody owns are careful; a lab that is thrown away guards what is labelled."""


@dataclass(frozen=True)
class Use:
    """What is broken now: ids of live injections by node, and nodes that do not answer, which count as broken."""

    live: Mapping[str, frozenset[str]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()

    def broken(self) -> frozenset[str]:
        """Nodes with a fault, or silent."""
        return self.silent | {name for name, ids in self.live.items() if ids}

    def of(self, node: str) -> frozenset[str]:
        """What is live on a node."""
        return self.live.get(node, frozenset())

    def without(self, injection_id: str) -> Use:
        """The use if this injection were not there."""
        return Use({name: ids - {injection_id} for name, ids in self.live.items()}, self.silent)

    def with_one(self, injection_id: str, nodes: Iterable[str]) -> Use:
        """The use once this injection stands on these nodes."""
        return Use({**self.live, **{name: self.of(name) | {injection_id} for name in nodes}}, self.silent)


@dataclass(frozen=True)
class Gauge:
    """One limit: how much is used, and how much would be."""

    what: str
    limit: int
    used: int
    would_be: int

    @property
    def exceeded(self) -> bool:
        """Whether the new fault takes it over the limit. One that is over already and gets no worse is not."""
        return self.would_be > self.limit and self.would_be > self.used

    def text(self) -> str:
        """ "2 of 3, 4 with this: exceeded"."""
        more = f", {self.would_be} with this" if self.would_be != self.used else ""
        return f"{self.used} of {self.limit}{more}{': exceeded' if self.exceeded else ''}"

    def data(self) -> dict[str, object]:
        """For --json."""
        return {"what": self.what, "limit": self.limit, "used": self.used, "would_be": self.would_be,
                "exceeded": self.exceeded}  # fmt: skip


def asks_everybody(limits: Limits, nodes: Sequence[Node]) -> bool:
    """Whether the limits are about more than the nodes that get the fault."""
    return limits.nodes is not None or limits.faults is not None or bool(quorum_groups(limits, nodes))


def quorum_groups(limits: Limits, nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """The groups that are guarded, with their nodes."""
    groups: dict[str, list[str]] = {}
    if limits.quorum != "off":
        for node in nodes:
            if name := node.labels.get(QUORUM_LABEL):
                groups.setdefault(f"{QUORUM_LABEL}={name}", []).append(node.name)
    if limits.quorum == "lab":
        groups["the lab"] = [node.name for node in nodes]
    return {name: tuple(members) for name, members in groups.items() if len(members) >= SMALLEST_QUORUM}


def gauges(limits: Limits, nodes: Sequence[Node], now: Use, after: Use) -> tuple[Gauge, ...]:
    """Each limit there is; of the nodes that get the fault only the fullest is told."""
    found = []
    if limits.nodes is not None:
        found.append(Gauge("nodes with a fault", limits.nodes, len(now.broken()), len(after.broken())))
    if limits.faults is not None:
        found.append(Gauge("faults in the lab", limits.faults, _faults(now), _faults(after)))
    for group, members in quorum_groups(limits, nodes).items():
        used, would_be = (len(use.broken() & set(members)) for use in (now, after))
        what = f"broken nodes of {group}, which needs {len(members) // 2 + 1} of {len(members)}"
        found.append(Gauge(what, (len(members) - 1) // 2, used, would_be))
    if limits.faults_per_node is not None and nodes:
        fullest = max((node.name for node in nodes), key=lambda n: (after.of(n) != now.of(n), len(after.of(n))))
        used, would_be = len(now.of(fullest)), len(after.of(fullest))
        found.append(Gauge(f"faults on {fullest}", limits.faults_per_node, used, would_be))
    return tuple(found)


def _faults(use: Use) -> int:
    return len(frozenset[str]().union(*use.live.values()))


def read_limits(path: Path, provider: str) -> Limits:
    """The limits that were set, or the provider's defaults. Raises :class:`LabError` for a damaged file."""
    try:
        return Limits.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return DEFAULTS.get(provider, Limits())
    except ValidationError:
        raise LabError(f"{path} is damaged", "delete it for the defaults, or set: labctl limits --help") from None


def write_limits(path: Path, limits: Limits | None) -> None:
    """Keep these limits; None: the defaults again."""
    if limits is None:
        path.unlink(missing_ok=True)
    else:
        write_atomic(path, limits.model_dump_json(indent=1).encode())
