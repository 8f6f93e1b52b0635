"""A report as one HTML page that needs nothing else: no script, no font, no picture from anywhere. Light and dark.

What solvers and nodes wrote goes through the serializer of :mod:`xml.etree`, which escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from labctl.report.runs.plots import MOST_MARKS, Plotter, drawing
from labctl.report.runs.reading import RunView
from labctl.report.runs.report import Report
from labctl.report.runs.summary import Rate
from labctl.report.runs.tables import RUN_HEAD, Row, in_order, run_row, score_rates, score_rows, title
from labctl.report.runs.trial import Trial

OPEN_UP_TO = 3
"""So many runs are shown opened; more of them are opened by whoever reads."""

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1d2226; --paper: #ffffff; --soft: #f2f4f5; --faint: #b4bcc2;
  --good: #0b6e4f; --bad: #b3261e; --odd: #8a6100;
  --served: #0b6e4f; --late: #b5482a; --fault: #c0202b; --noise: #7b8187; --solver: #44546a; --submission: #1f5fbf;
  --declaration: #6b2fa0; --action: #8a6100; --challenge: #44546a; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e7ea; --paper: #14181b; --soft: #1e2429; --faint: #56606a;
  --good: #55c79b; --bad: #ff8a80; --odd: #e5b94e;
  --served: #55c79b; --late: #f0936f; --fault: #ff7b80; --noise: #9aa3ab; --solver: #9fb4cf; --submission: #7fb0ff;
  --declaration: #c79bf2; --action: #e5b94e; --challenge: #9fb4cf; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 72rem; padding: 1.2rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; }
th, td { text-align: left; padding: .22rem .6rem; border-bottom: 1px solid var(--faint); vertical-align: top; }
th { position: sticky; top: 0; background: var(--paper); }
details { background: var(--soft); border-radius: .4rem; margin: .6rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; }
svg { max-width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
.passed, .pass { color: var(--good); font-weight: 600; }
.failed, .fail { color: var(--bad); font-weight: 600; }
.void, .unknown, .unfinished, .warning { color: var(--odd); font-weight: 600; }
code { font-size: .9em; }
"""
_SAFE = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Report) -> str:
    """The page. Raises :class:`UnsupportedError` where plots cannot be drawn."""
    drawings: list[str] = []
    with drawing() as plotter:
        body = _tag("body", _tag("h1", "Runs"), _tag("p", title(report)))
        body.extend(_warnings(report.warnings))
        if report.runs:
            body.extend(_scores(report, plotter, drawings))
            body.extend((_tag("h2", "All runs"), _wide(_table(RUN_HEAD, [run_row(t) for t in report.trials]))))
            body.append(_tag("h2", "Each run"))
            body.extend(_run(view, plotter, drawings, len(report.runs) <= OPEN_UP_TO) for view in report.runs)
    head = _tag("head", _tag("meta", charset="utf-8"), _tag("title", f"Runs: {title(report)}"),
                _tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
                ET.Element("meta", {"http-equiv": "Content-Security-Policy", "content": _SAFE}),
                _tag("style", _STYLE))  # fmt: skip
    text = ET.tostring(_tag("html", head, body, lang="en"), encoding="unicode", method="html")
    first, *rest = text.split(f"<{_PLACE}></{_PLACE}>")
    assert len(rest) == len(drawings)
    return "<!DOCTYPE html>\n" + first + "".join(map(str.__add__, drawings, rest)) + "\n"


_PLACE = "x-drawing"
"""Where a drawing goes, which is written out already. No text can hold such an element: it would be escaped."""


def _scores(report: Report, plotter: Plotter, drawings: list[str]) -> list[ET.Element]:
    rows: dict[str, list[tuple[str, Rate]]] = {}
    for name, scores in report.solvers.items():
        for label, rate in score_rates(scores):
            mine = rows.setdefault(label, [])
            mine.append((f"{label}, {name}" if len(report.solvers) > 1 else label, rate))
    drawings.append(
        plotter.rates([row for label in in_order(rows) for row in rows[label]], "Rates with 95 % intervals")
    )
    note = "Points are estimates, bars their 95 % intervals by bootstrap over problems; (runs in problems)."
    head, table = score_rows(report)
    return [_tag("h2", "Scores"), ET.Element(_PLACE), _tag("p", note), _wide(_table(head, table))]


def _run(view: RunView, plotter: Plotter, drawings: list[str], opened: bool) -> ET.Element:
    trial = view.trial
    name = f"{trial.problem}, {trial.solver}, {trial.noise} noise, seed {trial.seed}"
    found = _tag("details", _tag("summary", _tag("span", trial.counted, **{"class": trial.counted}), f" {name}"))
    if opened:
        found.set("open", "open")
    about = (f", started {trial.started}, catalogue {trial.catalogue}, layer {trial.layer}, mode {trial.mode}, "
             f"novelty {trial.novelty}")  # fmt: skip
    found.append(_tag("p", "Record ", _tag("code", trial.record), about))
    if view.series.at_s:
        drawings.append(plotter.run(view, f"Success and latency over time: {name}"))
        found.append(ET.Element(_PLACE))
    found.extend(_reasons(trial))
    if view.marks:
        rows = [(f"{m.at_s:.1f} s", m.kind, m.label, "" if m.until_s is None else f"{m.until_s:.1f} s")
                for m in view.marks[:MOST_MARKS]]  # fmt: skip
        found.append(_wide(_table(("AT", "KIND", "WHAT", "UNTIL"), rows)))
        if len(view.marks) > MOST_MARKS:
            found.append(_tag("p", f"{len(view.marks) - MOST_MARKS} more are in the record."))
    if view.judged:
        words = (f"The judge of diagnoses ({trial.judge_model}) says {view.judged.outcome.value}, "
                 f"{view.judged.yes} of 9.")  # fmt: skip
        found.append(_tag("p", words))
        found.append(_tag("ul", *(_tag("li", reason) for reason in view.judged.reasons)))
    found.extend(_warnings(view.flaws))
    return found


def _reasons(trial: Trial) -> list[ET.Element]:
    if not trial.reasons:
        return []
    words = f"Why it is not a pass{f' ({trial.failure})' if trial.failure else ''}:"
    return [_tag("p", words), _tag("ul", *(_tag("li", reason) for reason in trial.reasons))]


def _warnings(lines: Sequence[str]) -> list[ET.Element]:
    return [_tag("ul", *(_tag("li", line, **{"class": "warning"}) for line in lines))] if lines else []


def _table(head: Row, rows: Sequence[Row]) -> ET.Element:
    body = (_tag("tr", *(_tag("td", cell, **_class(cell)) for cell in row)) for row in rows)
    top = _tag("thead", _tag("tr", *(_tag("th", cell, scope="col") for cell in head)))
    return _tag("table", top, _tag("tbody", *body))


def _class(cell: str) -> dict[str, str]:
    return {"class": cell} if cell in ("passed", "failed", "pass", "fail", "void", "unknown", "unfinished") else {}


def _wide(table: ET.Element) -> ET.Element:
    return _tag("div", table, **{"class": "wide"})


def _tag(name: str, /, *content: ET.Element | str, **attributes: Any) -> ET.Element:
    """An element with text and elements in it, in this order. Control characters, which no page can have, go."""
    found = ET.Element(name, {key: _clean(str(value)) for key, value in attributes.items()})
    last: ET.Element | None = None
    for one in content:
        if isinstance(one, ET.Element):
            found.append(one)
            last = one
        elif last is None:
            found.text = (found.text or "") + _clean(one)
        else:
            last.tail = (last.tail or "") + _clean(one)
    return found


def _clean(text: str) -> str:
    return "".join(char for char in text if char.isprintable() or char in "\n\t")
