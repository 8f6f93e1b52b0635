"""What a mixed fleet can do: nodes that are alike told once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.report.text import PlainTable
from node_agent.api.views import NodeFacts, ProbeReport


@dataclass(frozen=True)
class Seen:
    """What one node is and can do."""

    facts: NodeFacts
    report: ProbeReport

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for nodes that need not be told apart."""
        facts = self.facts
        system = (facts.os, facts.kernel, facts.machine, facts.python, facts.agent_version, facts.contract)
        return (*system, self.report)


def kinds(seen: Mapping[str, Seen]) -> dict[str, list[str]]:
    """Nodes that are alike, by a title for them: "db1", "db1 +7"."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, one in seen.items():
        groups.setdefault(one.alike, []).append(name)
    return {names[0] + (f" +{len(names) - 1}" if len(names) > 1 else ""): names for names in groups.values()}


def kinds_table(seen: Mapping[str, Seen], groups: Mapping[str, Sequence[str]]) -> PlainTable:
    """One kind of node a row."""
    rows = []
    for title, names in groups.items():
        facts = seen[names[0]].facts
        agent = f"{facts.agent_version}, contract {facts.contract}"
        rows.append((title, facts.os, facts.kernel, facts.machine or "-", facts.python, agent, ", ".join(names)))
    return PlainTable(("KIND", "SYSTEM", "KERNEL", "MACHINE", "PYTHON", "AGENT", "NODES"), rows)


def by_kind(seen: Mapping[str, Seen], groups: Mapping[str, Sequence[str]]) -> dict[str, ProbeReport]:
    """The report of each kind, for :func:`labctl.report.doctor.matrix`."""
    return {title: seen[names[0]].report for title, names in groups.items()}
