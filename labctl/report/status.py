"""The state of a lab's nodes, for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.text import Text

from labctl.report.duration import format_duration
from labctl.report.text import PlainTable

IN_STEP_S = 0.1
"""Clocks that are closer than this, and the time an answer takes, are told as being in step."""


@dataclass(frozen=True)
class NodeReport:
    """What `labctl status` tells of one node. `agent`: "answers", "silent", "none", or "" where
    nobody was asked."""

    name: str
    address: str
    running: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""
    problem: str = ""
    web: str = ""
    """Where the service that clients use is reached."""

    agent_version: str = ""
    live: int = 0
    stuck: int = 0
    stopped: bool = False
    clock_offset_s: float | None = None
    clock_uncertainty_s: float = 0.0

    def data(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "labels": dict(self.labels)}


def reports_table(reports: Sequence[NodeReport]) -> PlainTable:
    """One node a row; labels where there are any."""
    labels = any(one.labels for one in reports)
    rows: list[tuple[str | Text, ...]] = []
    for one in reports:
        state = Text("running", style="green") if one.running else Text("off", style="dim")
        said = [labels_text(one.labels)] if labels else []
        rows.append((one.name, one.address, state, _agent(one), _faults(one), clock_text(one), *said, _note(one)))
    heads = ("NODE", "ADDRESS", "STATE", "AGENT", "FAULTS", "CLOCK", *(["LABELS"] if labels else []), "NOTE")
    return PlainTable(heads, rows)


def labels_text(labels: Mapping[str, str]) -> str:
    """ "quorum=etcd role=db"."""
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _agent(one: NodeReport) -> Text:
    if one.agent == "answers":
        return Text(one.agent_version)
    return Text(one.agent or "-", style="bold red" if one.agent == "silent" else "")


def _faults(one: NodeReport) -> Text:
    if one.agent != "answers" and not one.live + one.stuck:
        return Text("-")
    parts = [f"{one.live} live"] if one.live else []
    parts += [f"{one.stuck} STUCK"] if one.stuck else []
    return Text(", ".join(parts) or "none", style="bold red" if one.stuck else "yellow" if one.live else "")


def clock_text(one: NodeReport) -> str:
    """How far the node's clock is from ours."""
    if one.clock_offset_s is None:
        return "-"
    size = abs(one.clock_offset_s)
    if size < IN_STEP_S + one.clock_uncertainty_s:
        return "in step"
    return f"{format_duration(round(size, 1))} {'ahead' if one.clock_offset_s > 0 else 'behind'}"


def _note(one: NodeReport) -> str:
    stopped = "new faults refused: labctl stop is in force" if one.stopped else ""
    return one.problem or "; ".join(filter(None, (stopped, one.web)))
