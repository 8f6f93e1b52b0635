"""What `labctl doctor` shows: checks of this machine, and a matrix of nodes and capabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from labctl.lab.selfcheck import Check
from labctl.report.text import PlainTable
from node_agent.api.views import ProbeReport

_STYLES = {"ok": "green", "missing": "bold red", "info": "yellow", "yes": "green", "no": "bold red", "-": "dim"}


def checks_table(checks: Sequence[Check]) -> PlainTable:
    """Checks of this machine, one a row."""
    rows = []
    for one in checks:
        detail = one.detail + (f"; remedy: {one.remedy}" if one.remedy else "")
        rows.append((one.name, Text(one.verdict, style=_STYLES[one.verdict]), detail))
    return PlainTable(("THIS MACHINE", "", ""), rows)


def matrix(reports: Mapping[str, ProbeReport]) -> PlainTable:
    """Faults and the capabilities below them, one a row; nodes, one a column."""
    rows: list[list[str | Text]] = []
    for name in _names(reports, "fault"):
        rows.append([f"inject {name}", *(_cell(_faults(r).get(name)) for r in reports.values())])
    for name in _names(reports, "capability"):
        rows.append([name, *(_cell(_capabilities(r).get(name)) for r in reports.values())])
    return PlainTable(("CAN", *reports), rows)


def _cell(answer: bool | None) -> Text:
    word = "-" if answer is None else "yes" if answer else "no"
    return Text(word, style=_STYLES[word])


def _faults(report: ProbeReport) -> dict[str, bool]:
    return {one.fault: one.available for one in report.faults}


def _capabilities(report: ProbeReport) -> dict[str, bool]:
    return {one.name: one.available for one in report.capabilities}


def _names(reports: Mapping[str, ProbeReport], kind: str) -> list[str]:
    read = _faults if kind == "fault" else _capabilities
    return list(dict.fromkeys(name for report in reports.values() for name in read(report)))


def reasons(reports: Mapping[str, ProbeReport]) -> list[str]:
    """Why capabilities are missing and what would help; nodes with the same answer share a line."""
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for node, report in reports.items():
        for one in report.capabilities:
            if not one.available:
                nodes.setdefault((one.name, one.reason, one.remedy), []).append(node)
    return [
        f"{name} ({', '.join(where)}): {reason or 'no reason given'}" + (f"; remedy: {remedy}" if remedy else "")
        for (name, reason, remedy), where in nodes.items()
    ]
