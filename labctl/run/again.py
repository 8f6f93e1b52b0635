"""Judging a record again, offline: from what the episode gathered to a verdict, beside the one that was given."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from labctl.errors import LabError
from labctl.run.catalogue import Catalogue
from labctl.run.diary import gathered_of
from labctl.run.judging import verdict_of
from labctl.run.record import read_record
from labctl.run.verdict import Verdict


class Rejudged(BaseModel):
    """A verdict worked out again. `differences`: in what it is another one than the record has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem: str
    revision: str
    today: str
    verdict: Verdict
    differences: tuple[str, ...] = ()

    @property
    def same_revision(self) -> bool:
        """Whether the problems are those that the run had."""
        return self.revision == self.today


def judge_again(path: Path, problems: Catalogue) -> Rejudged:
    """Raises :class:`LabError` for a record that is damaged or has no end, and for a problem that is no more."""
    record = read_record(path)
    if record.run.problem not in problems.problems:
        raise LabError(f"{path}: there is no problem {record.run.problem} any more", "use the labctl that ran it")
    gathered, lines = gathered_of(record)
    verdict = verdict_of(problems.find(record.run.problem), gathered, lines)
    return Rejudged(
        problem=record.run.problem, revision=record.run.catalogue.partition(" ")[0], today=problems.revision,
        verdict=verdict, differences=_differences(record.verdict, verdict),
    )  # fmt: skip


def _differences(then: Verdict | None, now: Verdict) -> tuple[str, ...]:
    if then is None:
        return ("the record has no verdict",)
    found = [
        f"{what}: was {before}, is {after}"
        for what, before, after in (
            ("outcome", then.outcome, now.outcome),
            ("failure", then.failure, now.failure),
            ("diagnosis", then.diagnosis, now.diagnosis),
            ("void", then.void or "nothing", now.void or "nothing"),
        )
        if before != after
    ]
    old, new = ({f.oracle: f.outcome for f in v.findings} for v in (then, now))
    for oracle in sorted({*old, *new}):
        if old.get(oracle) != new.get(oracle):
            found.append(f"{oracle}: was {old.get(oracle, 'not asked')}, is {new.get(oracle, 'not asked')}")
    return tuple(found)
