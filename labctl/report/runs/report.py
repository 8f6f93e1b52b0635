"""All that a report says, as data; and as JSON and CSV. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from labctl.report.runs.reading import Damaged, RunView
from labctl.report.runs.summary import Scores, grouped, scores
from labctl.report.runs.trial import Trial
from labctl.report.text import count

_COUNTED = re.compile(r"^(?P<revision>\S+)(?: \((?P<count>\d+) problems?\))?$")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Revision(_Value):
    """A revision of the catalogue that runs were made with. `problems`: how many it has, where that is known."""

    revision: str
    problems: int | None
    runs: int

    def __str__(self) -> str:
        many = "an unknown number of problems" if self.problems is None else count(self.problems, "problem")
        return f"{self.revision} ({many})"


class Report(_Value):
    """`solvers` has the scores of each. `warnings`: what somebody who compares these numbers must know."""

    catalogues: tuple[Revision, ...]
    solvers: Mapping[str, Scores]
    runs: tuple[RunView, ...]
    damaged: tuple[Damaged, ...]
    warnings: tuple[str, ...]

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(view.trial for view in self.runs)


def report_of(runs: Sequence[RunView], damaged: Sequence[Damaged], known: Mapping[str, int]) -> Report:
    """`known`: how many problems revisions have of which this labctl knows."""
    trials = [view.trial for view in runs]
    catalogues = tuple(_revision(text, len(mine), known) for text, mine in
                       grouped(trials, lambda trial: trial.catalogue).items())  # fmt: skip
    solvers = {name: scores(mine) for name, mine in grouped(trials, lambda trial: trial.solver).items()}
    return Report(catalogues=catalogues, solvers=solvers, runs=tuple(runs), damaged=tuple(damaged),
                  warnings=tuple(_warnings(runs, damaged, catalogues)))  # fmt: skip


def _revision(text: str, runs: int, known: Mapping[str, int]) -> Revision:
    found = _COUNTED.match(text)
    revision = found["revision"] if found else text
    many = int(found["count"]) if found and found["count"] else known.get(revision)
    return Revision(revision=revision, problems=many, runs=runs)


def _warnings(runs: Sequence[RunView], damaged: Sequence[Damaged], catalogues: Sequence[Revision]) -> list[str]:
    trials = [view.trial for view in runs]
    told = []
    if len(catalogues) > 1:
        each = ", ".join(f"{one} in {count(one.runs, 'run')}" for one in catalogues)
        told.append(f"the runs are of different revisions of the catalogue: {each}; do not compare their rates")
    judges = sorted({trial.judge_model for trial in trials if trial.judge_model})
    if len(judges) > 1:
        told.append(f"diagnoses were judged by different models: {', '.join(judges)}")
    twice = sorted(name for name, mine in grouped(trials, lambda trial: trial.id).items() if len(mine) > 1)
    if twice:
        told.append(f"runs that are there more than once: {', '.join(twice)}")
    told += [f"{one.record}: it cannot be read: {one.why}" for one in damaged]
    told += [f"{view.trial.record}: {flaw}" for view in runs for flaw in view.flaws]
    return told


def as_data(report: Report) -> dict[str, Any]:
    """The report as JSON data; what is not a number is null. Series of plots are left out."""
    data = report.model_dump(mode="json", exclude={"runs"})
    data["runs"] = [
        {**view.trial.row(), "reasons": view.trial.reasons, "flaws": view.flaws,
         "events": [mark.model_dump(mode="json") for mark in view.marks],
         "diagnosis_judge": view.judged.model_dump(mode="json") if view.judged else None}
        for view in report.runs
    ]  # fmt: skip
    found: dict[str, Any] = _plain(data)
    return found


def as_json(report: Report) -> str:
    """See :func:`as_data`."""
    return json.dumps(as_data(report), indent=2, allow_nan=False) + "\n"


def as_csv(report: Report) -> str:
    """A row a run, in the order of their starts; records that cannot be read come last, counted as `damaged`.

    A cell that begins like a formula is quoted, so that no spreadsheet works it out.
    """
    fields = [*Trial.model_fields, "time_to_diagnosis_s", "time_to_mitigation_s"]
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    rows = [dict(trial.row()) for trial in report.trials]
    rows += [{"record": one.record, "counted": "damaged", "reasons": one.why} for one in report.damaged]
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def _plain(value: Any) -> Any:
    """The same without numbers that JSON has not."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
