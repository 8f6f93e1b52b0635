"""Tables of a report, as rows of words: the terminal and the page show the same ones. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.text import Text

from labctl.report.runs.report import Report
from labctl.report.runs.summary import BREAKDOWNS, KS, Rate, Scores
from labctl.report.runs.trial import Trial
from labctl.report.text import PlainTable, count

Row = tuple[str, ...]

RUN_HEAD: Row = ("PROBLEM", "SOLVER", "NOISE", "RESULT", "SERVED", "SAFE", "LASTS", "DIAGNOSIS", "JUDGE",
                 "DIAGNOSED", "REPAIRED", "WHY")  # fmt: skip
_STYLES = {"passed": "green", "failed": "bold red", "pass": "green", "fail": "bold red", "unknown": "yellow",
           "void": "yellow", "unfinished": "yellow"}  # fmt: skip
_LONGEST = 160
_FILE_WIDTH = 1000


def title(report: Report) -> str:
    """What the report is about: how many runs, and of which catalogue."""
    names = {trial.problem for trial in report.trials}
    catalogue = ", ".join(map(str, report.catalogues)) or "none"
    runs = f"{count(len(report.runs), 'run')} of {count(len(names), 'problem')}"
    bad = f", and {count(len(report.damaged), 'record')} that cannot be read" if report.damaged else ""
    return f"{runs}{bad}; catalogue {catalogue}"


def run_row(trial: Trial) -> Row:
    """A run, under :data:`RUN_HEAD`."""
    judge = "-" if trial.judged is None else trial.judged.value
    if trial.judge_yes is not None:
        judge = f"{trial.judge_yes}/9"
    told = trial.counted in ("passed", "failed", "unknown")
    seen = [one.value if told else "-" for one in (trial.served, trial.safe, trial.lasting)]
    first = trial.reasons[0] if trial.reasons else ""
    why = ": ".join(filter(None, (trial.failure, first[:_LONGEST])))
    return (trial.problem, trial.solver, trial.noise, trial.counted, *seen, trial.diagnosis, judge,
            _seconds(trial.diagnosed_s), _seconds(trial.declared_s), why)  # fmt: skip


def score_rows(report: Report) -> tuple[Row, tuple[Row, ...]]:
    """The head, and a row a score with a column a solver."""
    found = [dict(_rows(one)) for one in report.solvers.values()]
    labels = in_order(label for rows in found for label in rows)
    rows = tuple((label, *(rows.get(label, "-") for rows in found)) for label in labels)
    return ("SCORE", *report.solvers), rows


def in_order(labels: Iterable[str]) -> list[str]:
    """Each once, in the order in which they come, but those with the same word before a colon together."""
    each = list(dict.fromkeys(labels))
    first = {label.partition(": ")[0]: place for place, label in reversed(list(enumerate(each)))}
    return sorted(each, key=lambda label: first[label.partition(": ")[0]])


def score_rates(scores: Scores) -> list[tuple[str, Rate]]:
    """The rates that are worth a plot."""
    return [
        ("Pass@1", scores.pass_at_1),
        *((f"Pass^{k}", scores.pass_hat[str(k)]) for k in KS),
        ("right diagnosis", scores.diagnosis),
        ("diagnosis and repair", scores.both),
        ("diagnosis, by the judge", scores.judge),
        ("repaired, if diagnosed", scores.mitigated_if_diagnosed),
        ("repaired, if not diagnosed", scores.mitigated_if_not),
        ("diagnosed, if repaired", scores.diagnosed_if_mitigated),
        *((f"{name}: {group}", rate) for name in BREAKDOWNS for group, rate in scores.by[name].items()),
    ]


def _rows(scores: Scores) -> list[tuple[str, str]]:
    counted = scores.counted
    left_out = ", ".join(f"{counted[how]} {how}" for how in ("void", "unknown", "unfinished"))
    rates = [(label, str(rate)) for label, rate in score_rates(scores)]
    split = len(rates) - sum(map(len, scores.by.values()))
    return [
        ("runs in the rates", f"{counted['passed'] + counted['failed']} of {scores.runs}"),
        ("left out", left_out),
        *rates[:split],
        ("Pass@1, unknown as failed", str(scores.pass_at_1_unknown_fails)),
        ("not read by the judge", str(scores.not_judged) if scores.judge.trials else "-"),
        ("diagnoses", _counts(scores.diagnosis_grades)),
        *((f"served/safe: {both}", str(n)) for both, n in scores.outcome_by_safety.items()),
        *((f"failed: {why}", str(n)) for why, n in scores.failures.items()),
        ("time to diagnosis (s)", scores.diagnosis_s.seconds),
        ("diagnoses at the cap", str(scores.diagnosis_timeouts)),
        ("time to repair (s)", scores.mitigation_s.seconds),
        ("repairs at the cap", str(scores.mitigation_timeouts)),
        ("healthy until declared (s, median)", _number(scores.after_fix_median_s)),
        ("actions after the fix (mean)", _number(scores.actions_after_fix)),
        ("tokens a run (mean)", _number(scores.tokens)),
        ("cost a run (US$, mean)", _number(scores.cost_usd, 4)),
        ("cost a pass (US$)", _number(scores.cost_per_pass_usd, 4)),
        *rates[split:],
    ]


def terminal(report: Report) -> RenderableType:
    """All of it for a terminal."""
    head, rows = score_rows(report)
    parts: list[RenderableType] = [Text(title(report), style="bold"), ""]
    if report.runs:
        parts += [PlainTable(RUN_HEAD, [tuple(map(_styled, run_row(trial))) for trial in report.trials]), ""]
        parts += [PlainTable(head, rows), "", Text("In brackets: 95 % intervals, bootstrap over problems.")]
    if report.warnings:
        parts += ["", Text("What to know of these numbers:", style="bold")]
        parts += [Text(f"  {line}", style="yellow") for line in report.warnings]
    return Group(*parts)


def plain(report: Report) -> str:
    """The same as text, for a file: nothing is folded or cut."""
    console = Console(width=_FILE_WIDTH, highlight=False, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(terminal(report), crop=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
