"""What `labctl doctor` shows: checks of this machine, and a matrix of nodes and capabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from rich.text import Text

from labctl.lab.selfcheck import Check
from labctl.report.text import PlainTable
from node_agent.api.views import ProbeReport

_STYLES = {"ok": "green", "missing": "bold red", "info": "yellow", "yes": "green", "no": "bold red", "-": "dim"}


SECTIONS: Mapping[str, frozenset[str]] = MappingProxyType({
    "backends of system calls": frozenset({"bpf", "bcc", "strace", "ptrace"}),
    "the kernel's own facilities": frozenset({"kernel"}),
    "backends of disks": frozenset({"dm", "loop"}),
})  # fmt: skip
"""Titles, and how the names of their capabilities begin, up to the first dot."""

OTHER = "other abilities"


def checks_table(checks: Sequence[Check]) -> PlainTable:
    """Checks of this machine, one a row."""
    rows = []
    for one in checks:
        detail = one.detail + (f"; remedy: {one.remedy}" if one.remedy else "")
        rows.append((one.name, Text(one.verdict, style=_STYLES[one.verdict]), detail))
    return PlainTable(("THIS MACHINE", "", ""), rows)


def matrix(reports: Mapping[str, ProbeReport]) -> PlainTable:
    """Faults and, by what they serve, the capabilities below them, one a row; nodes, one a column."""
    faults, names = _names(reports, "fault"), _names(reports, "capability")
    groups = {"faults": [(f"inject {n}", [_faults(r).get(n) for r in reports.values()]) for n in faults]}
    for title in (*SECTIONS, OTHER):
        chosen = [n for n in names if section_of(n) == title]
        groups[title] = [(n, [_capabilities(r).get(n) for r in reports.values()]) for n in chosen]
    rows: list[list[str | Text]] = []
    blank = [""] * len(reports)
    for title, lines in groups.items():
        if lines:
            rows += [["", *blank]] if rows else []
            rows += [[Text(title.upper(), style="bold"), *blank]]
            rows += [[name, *map(_cell, answers)] for name, answers in lines]
    return PlainTable(("CAN", *reports), rows)


def section_of(capability: str) -> str:
    """The title under which a capability is shown."""
    begin = capability.partition(".")[0]
    return next((title for title, begins in SECTIONS.items() if begin in begins), OTHER)


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
    """Why things are missing and what would help, in the order of the matrix.

    Nodes with the same answer share a line, and so do capabilities that all lack for one reason.
    """
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for node, report in reports.items():
        for gap in _gaps(report):
            nodes.setdefault(gap, []).append(node)
    names: dict[tuple[tuple[str, ...], str, str], list[str]] = {}
    order = [*SECTIONS, OTHER]
    for (name, reason, remedy), where in sorted(nodes.items(), key=lambda gap: order.index(section_of(gap[0][0]))):
        names.setdefault((tuple(where), reason, remedy), []).append(name)
    return [
        f"{', '.join(lacking)} ({', '.join(where)}): {reason or 'no reason given'}"
        + (f"; remedy: {remedy}" if remedy else "")
        for (where, reason, remedy), lacking in names.items()
    ]


def _gaps(report: ProbeReport) -> Iterator[tuple[str, str, str]]:
    """Name, reason and remedy of each capability that a node lacks, and of what else its faults miss."""
    for one in report.capabilities:
        if not one.available:
            yield one.name, one.reason, one.remedy
    probed = {one.name for one in report.capabilities}
    for fault in report.faults:
        for lack in fault.missing:
            if lack.capability not in probed:
                yield f"inject {fault.fault}", f"{lack.capability}: {lack.reason}", lack.remedy
