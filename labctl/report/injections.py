"""Injections in an operator's words. Pure: values in, text or tables out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from rich.text import Text

from labctl.report.duration import format_duration
from labctl.report.plans import parameters_text, reach_rows
from labctl.report.text import PlainTable, count, labelled
from node_agent.api.views import PlanView
from node_agent.fault import Evidence
from node_agent.injection import InjectionView

LOG_LINES = 8
"""Kernel log lines shown of one injection; the rest is counted."""

_NO_EVIDENCE = Evidence(armed=False, hits=0)
_STYLES = {"active": "green", "stuck": "bold red", "recovered": "dim"}
_REASONS = {
    "recover": "on request",
    "expired": "its lease ran out",
    "stop": "by labctl stop",
    "restart": "the agent restarted",
    "agent stopped": "the agent was stopped",
    "apply_failed": "it could not be planted",
}


def evidence_of(injection: InjectionView) -> Evidence:
    """Its evidence; an unarmed nothing where the agent has none."""
    return injection.evidence or _NO_EVIDENCE


def ended_because(injection: InjectionView) -> str:
    """Why it ended, in words."""
    return _REASONS.get(injection.reason, injection.reason or "unknown")


def _ends_at(injection: InjectionView, now: dt.datetime) -> str:
    return f"{now + dt.timedelta(seconds=injection.expires_in_s):%H:%M:%S}"


def lease_text(injection: InjectionView, now: dt.datetime) -> str:
    """How long it still lasts and until when on the reader's clock, or why it is over."""
    if injection.state == "active":
        return f"{format_duration(round(injection.expires_in_s))} left, until {_ends_at(injection, now)}"
    if injection.state in ("recovered", "stuck"):
        return f"over, {ended_because(injection)}"
    return "-"


def hits_text(injection: InjectionView) -> str:
    """How often it bit: a count, or that it is armed and waits."""
    evidence = evidence_of(injection)
    armed = evidence.armed and injection.state == "active"
    return f"{evidence.hits} (armed)" if armed and not evidence.hits else str(evidence.hits)


def injected_text(injection: InjectionView, plan: PlanView | None, now: dt.datetime, width: int = 0) -> str:
    """What has been planted on one node, and what it covers where it was planned just now."""
    if injection.state != "active":
        return f"{injection.fault} on {injection.node} is {injection.state}: {lease_text(injection, now)}"
    evidence = evidence_of(injection)
    lease = f"{format_duration(injection.lease_s)}, ends at {_ends_at(injection, now)} and then heals by itself"
    rows = [
        ("target", injection.target),
        ("backend", injection.backend),
        ("parameters", parameters_text(injection.parameters)),
        ("lease", lease),
        ("hits", _hits_sentence(evidence)),
        *(reach_rows(plan) if plan else []),
        *(("note", note) for note in evidence.notes),
    ]
    head = f"{injection.fault} is active on {injection.node}, injection {injection.id}"
    return "\n".join([head, *labelled(rows, width=width), *log_lines(evidence)])


def _hits_sentence(evidence: Evidence) -> str:
    if not evidence.armed:
        return f"{evidence.hits}, but the kernel does not show the fault any more"
    if evidence.hits:
        return f"{evidence.hits} so far: it bites"
    return "0 so far: armed, it bites when its target is used"


def log_lines(evidence: Evidence) -> list[str]:
    """The kernel log lines a fault caused, the last of them where there are many."""
    shown = evidence.log[-LOG_LINES:]
    if not shown:
        return []
    some = f" (the last {len(shown)} of {len(evidence.log)} lines)" if len(evidence.log) > len(shown) else ""
    gap = ["    (the kernel dropped lines in between)"] if evidence.log_gap else []
    return [f"  kernel log{some}", *(f"    {line}" for line in shown), *gap]


def evidence_text(injection: InjectionView, width: int = 0) -> str:
    """What shows an injection: counters, signs of a real failure that were seen or not, the kernel's lines."""
    evidence = evidence_of(injection)
    rows = [
        ("state", injection.state + (", data lost" if injection.data_lost else "")),
        ("target", injection.target),
        ("backend", injection.backend),
        ("hits", hits_text(injection)),
        *sorted((name.replace("_", " "), str(value)) for name, value in evidence.counters.items()),
        *(("note", note) for note in evidence.notes),
        *(("data lost", text) for text in injection.data_lost or evidence.lost),
    ]
    head = f"{injection.id}: {injection.fault} on {injection.node}"
    return "\n".join([head, *labelled(rows, width=width), *_sign_lines(evidence), *log_lines(evidence)])


def _sign_lines(evidence: Evidence) -> list[str]:
    """The declared signs, each with what was found of it."""
    lines = []
    for sign in evidence.signs:
        verdict = "seen" if sign.seen else "expected, not seen"
        when = f" ({sign.when})" if sign.when and not sign.seen else ""
        found = f": {sign.found}" if sign.found else ""
        lines.append(f"    {verdict}: {sign.what}{when}{found}")
    return ["  signs of such a failure", *lines] if lines else []


def _table(injections: Sequence[InjectionView], now: dt.datetime, last: str, cells: Sequence[str]) -> PlainTable:
    rows = []
    for one, cell in zip(injections, cells, strict=True):
        state = Text(one.state, style=_STYLES.get(one.state, ""))
        rows.append((one.id, one.node, one.fault, state, hits_text(one), lease_text(one, now), cell))
    return PlainTable(("ID", "NODE", "FAULT", "STATE", "HITS", "LEASE", last), rows)


def injections_table(injections: Sequence[InjectionView], now: dt.datetime) -> PlainTable:
    """Injections with their targets, one a row; what one left or cost stands in its target's place."""
    cells = [_last_cell(one) for one in injections]
    return _table(injections, now, "TARGET", cells)


def _last_cell(injection: InjectionView) -> str:
    if injection.state == "stuck":
        return f"LEFT: {'; '.join(injection.residue)}"
    if injection.data_lost:
        return f"DATA LOST: {'; '.join(injection.data_lost)}"
    return injection.target


def watch_table(injections: Sequence[InjectionView], now: dt.datetime) -> PlainTable:
    """The live view of a watch: every counter of each node."""
    return _table(injections, now, "COUNTERS", [_counters(one, "\n") for one in injections])


def _counters(injection: InjectionView, between: str) -> str:
    return between.join(f"{key}={value}" for key, value in sorted(evidence_of(injection).counters.items()))


def watch_line(injection: InjectionView, now: dt.datetime) -> str:
    """One line of a watch where there is no terminal."""
    hits = f"hits={evidence_of(injection).hits}"
    parts = [f"{now:%H:%M:%S}", injection.node, injection.id, injection.state, hits, _counters(injection, " "),
             lease_text(injection, now)]  # fmt: skip
    return "  ".join(part for part in parts if part)


def recovered_line(injection: InjectionView) -> str:
    """What became of an injection that was to be recovered."""
    name = f"{injection.id} ({injection.fault} on {injection.node})"
    if injection.state == "recovered":
        hits = count(evidence_of(injection).hits, "hit")
        if injection.data_lost:
            return f"{name}: recovered, data lost, {hits}: {'; '.join(injection.data_lost)}"
        over = (
            "recovered"
            if injection.reason in ("recover", "stop")
            else f"was over before, {ended_because(injection)}"
        )
        return f"{name}: {over}, {hits}, nothing left behind"
    if injection.state == "stuck":
        left = "; ".join(injection.residue) or injection.error or "the agent does not say what"
        return f"{name}: STUCK, left behind: {left}"
    return f"{name}: still {injection.state}"
