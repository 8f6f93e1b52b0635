"""A record as a report sees it: the trial, what happened when, and how clients fared. Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import LabError
from labctl.report.runs.layers import layer_of
from labctl.report.runs.series import Lines, Series, healthy_from, parse, series
from labctl.report.runs.trial import Trial
from labctl.run.diagnosis_judge import JudgedDiagnosis, judged_before
from labctl.run.problem import DEFAULT_LIMIT_S, Problem
from labctl.run.record import Event, Record, read_record
from labctl.run.verdict import Aspect, FailureClass, Outcome, Verdict

LEDGER, USAGE = "ledger.jsonl", "usage.json"
FROM_INCIDENT, NEW = "published incident", "new"
_ACTIONS = frozenset({"submitted", "asked", "step"})
"""Of a scripted solver each step is told, of others what they ask at their desk."""

_NAMED_BY: Mapping[FailureClass, Aspect] = {
    "off_the_permitted_list": "scope", "cause_left": "cause", "did_not_last": "durability",
    "out_of_bounds": "objective", "integrity": "integrity",
}  # fmt: skip

Kind = Literal["fault", "noise", "solver", "submission", "declaration", "action", "challenge"]
Knowing = Callable[[str], Problem | None]
"""The problem of a name, where this labctl still has it."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Mark(_Value):
    """Something that happened, seconds since the start of the record; `until_s` where it lasted."""

    at_s: float
    kind: Kind
    label: str
    until_s: float | None = None


class RunView(_Value):
    """What a report shows of one run. `flaws`: what of its record is missing or damaged, in words."""

    trial: Trial
    series: Series
    marks: tuple[Mark, ...] = ()
    flaws: tuple[str, ...] = ()
    judged: JudgedDiagnosis | None = None


class Damaged(_Value):
    """A record that cannot be read at all, and why."""

    record: str
    why: str


class _Usage(BaseModel):
    """What a solver says that it used: `usage.json` in its directory. Further fields are its own business."""

    tokens: int | None = Field(default=None, ge=0)
    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)


def read_all(paths: Sequence[Path], knowing: Knowing) -> tuple[tuple[RunView, ...], tuple[Damaged, ...]]:
    """All that can be read, in the order of their starts, and what cannot."""
    views, damaged = [], []
    for path in paths:
        try:
            views.append(view(path, knowing))
        except LabError as error:
            damaged.append(Damaged(record=str(path), why=error.message))
    return tuple(sorted(views, key=lambda v: (v.trial.started, v.trial.id))), tuple(damaged)


def view(path: Path, knowing: Knowing) -> RunView:
    """One record. Raises :class:`LabError` where it is none, or damaged."""
    record = read_record(path)
    lines, flaws = _ledger(record)
    if record.verdict is None:
        flaws.append(f"it was cut short: its last stage is {record.run.stage}")
    if record.run.aborted:
        flaws.append(f"it was aborted: {record.run.aborted}")
    offset = load_began(record)
    usage, usage_flaws = _usage(path)
    judged = next(iter(reversed(judged_before(path))), None)
    try:
        times = _times(record, lines, offset)
        trial = _trial(record, knowing(record.run.problem), times, usage, judged)
        marks = tuple(sorted(_marks(record), key=lambda mark: mark.at_s))
        return RunView(trial=trial, series=series(lines, offset), marks=marks, flaws=(*flaws, *usage_flaws),
                       judged=judged)  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:  # events or lines of another making
        raise LabError(f"the record at {path} is damaged: {str(error).splitlines()[0]}") from None


def load_began(record: Record) -> float:
    """When in the record the load began: its windows have its clock, and follow what was seen at their ends."""
    seen = {e.data.get("when"): e.at_s for e in record.events if e.kind == "sight"}
    for event in record.events:
        if event.kind == "window" and event.data.get("when") in seen and "end_s" in event.data:
            return round(float(seen[event.data["when"]] - event.data["end_s"]), 3)
    return _stage(record, "gate") or 0.0


def _trial(record: Record, problem: Problem | None, times: Mapping[str, Any], usage: _Usage,
           judged: JudgedDiagnosis | None) -> Trial:  # fmt: skip
    run, verdict = record.run, record.verdict or Verdict(declared=False)
    faults = [str(e.data["fault"]) for e in record.events if e.kind == "planted"]
    return Trial(
        record=str(record.path), id=run.id, problem=run.problem, catalogue=run.catalogue, solver=run.solver,
        noise=run.noise, seed=run.seed, started=run.started.isoformat(), counted=_counted(record),
        mode=problem.mode if problem else "unknown",
        layer=layer_of(faults or [p.name for p in (problem.faults if problem else ())]),
        novelty=(FROM_INCIDENT if problem.case else NEW) if problem else "unknown",
        outcome=verdict.outcome, served=verdict.of("outcome"), safe=verdict.of("safety"),
        lasting=verdict.of("durability"), failure=verdict.failure, diagnosis=verdict.diagnosis,
        reasons=_reasons(verdict) if record.verdict else (), judged=judged.outcome if judged else None,
        judge_yes=judged.yes if judged and judged.answers else None,
        judge_model=f"{judged.model} ({judged.served})" if judged else "",
        limit_s=run.limit_s or (problem.limit_s if problem else DEFAULT_LIMIT_S),
        tokens=usage.tokens, cost_usd=usage.cost_usd, **times,
    )  # fmt: skip


def _times(record: Record, lines: Lines, offset: float) -> Mapping[str, Any]:
    """When the solver did what, in seconds since it started; see :class:`Trial`."""
    began, solved = _stage(record, "solve"), _last(record, "solved")
    declared = _declared(record, solved)
    diagnosed = _settled(record, solved)
    healthy = None
    if began is not None and declared is not None:
        planted = _last(record, "planted")
        found = healthy_from(lines, (planted.at_s if planted else began) - offset, declared - offset)
        healthy = None if found is None else max(found + offset, began)
    after = [e for e in record.events if _is_action(e) and healthy is not None and e.at_s >= healthy]
    return {
        "diagnosed_s": _since(began, diagnosed),
        "declared_s": _since(began, declared),
        "healthy_s": _since(began, healthy),
        "after_fix_s": _since(healthy, declared),
        "actions_after_fix": len(after) if healthy is not None else None,
    }


def _reasons(verdict: Verdict) -> tuple[str, ...]:
    """Why it is not a pass: first what gave the failure its name."""
    aspect = _NAMED_BY.get(verdict.failure or "never_declared")
    named = {f"{f.oracle}: {reason}" for f in verdict.findings if f.aspect == aspect for reason in f.reasons}
    return tuple(sorted(verdict.reasons, key=lambda reason: reason not in named))


def _is_action(event: Event) -> bool:
    return event.kind in _ACTIONS and event.data.get("where") != "hardware"


def _counted(record: Record) -> str:
    if record.verdict is None:
        return "unfinished"
    if record.verdict.void:
        return "void"
    return {Outcome.PASS: "passed", Outcome.FAIL: "failed", Outcome.UNKNOWN: "unknown"}[record.verdict.outcome]


def _marks(record: Record) -> Iterator[Mark]:
    over = _stage(record, "recover")
    ends = _ends(record)
    solved = _last(record, "solved")
    for event in record.events:
        at, data = event.at_s, event.data
        match event.kind:
            case "planted" | "planted_again":
                until = ends.get(str(data.get("injection")), over)
                yield Mark(at_s=at, kind="fault", label=f"{data['fault']} on {data['node']}", until_s=until)
            case "noise":
                if not data.get("problem"):
                    yield Mark(at_s=at, kind="noise", label=_told(data) or "noise", until_s=_lasting(at, data))
            case "submitted":
                yield Mark(at_s=at, kind="submission", label="submitted")
            case "asked":
                yield Mark(at_s=at, kind="action", label=f"{data.get('tool', '?')}: {data.get('text', '')}")
            case "step" if data.get("where") != "hardware":  # that one is asked for, too
                yield Mark(
                    at_s=at, kind="action", label=f"step {data.get('number', '')} at {data.get('where', '?')}"
                )
            case "challenge":
                yield Mark(at_s=at, kind="challenge", label=f"challenge of {data.get('node', '?')}")
            case "stage" if data.get("stage") == "solve":
                yield Mark(at_s=at, kind="solver", label="solver starts")
    if solved and solved.data.get("diagnosis") and not _last(record, "submitted"):
        yield Mark(at_s=solved.at_s, kind="submission", label="submitted")
    declared = _declared(record, solved)
    if declared is not None:
        yield Mark(at_s=declared, kind="declaration", label="declared")


def _ends(record: Record) -> dict[str, float]:
    """When injections ended before the recovery: by themselves, or by hands that repaired the hardware."""
    found = {str(e.data.get("injection")): e.at_s for e in record.events if e.kind == "ended"}
    for event in record.events:
        if event.kind == "hardware":
            found |= {str(one).rpartition(" ")[2]: event.at_s for one in event.data.get("ended", ())}
    return found


def _settled(record: Record, solved: Event | None) -> float | None:
    """When the diagnosis that counts was submitted: from then on each one named the same."""
    last = solved.data.get("diagnosis") if solved else None
    if solved is None or not last:
        return None
    at_s = solved.at_s
    for event in reversed(record.events):
        if event.kind == "submitted":
            if _named(event.data.get("diagnosis")) != _named(last):
                break
            at_s = event.at_s
    return at_s


def _named(diagnosis: Mapping[str, Any] | None) -> frozenset[tuple[str, ...]]:
    triples = (diagnosis or {}).get("triples", ())
    return frozenset(tuple(str(triple[word]) for word in sorted(triple)) for triple in triples)


def _told(data: Mapping[str, Any]) -> str:
    """The words of an event: what, and where."""
    what = next((str(data[key]) for key in ("what", "disturbance", "kind") if data.get(key)), "")
    return f"{what} on {data['node']}" if what and data.get("node") else what


def _lasting(at_s: float, data: Mapping[str, Any]) -> float | None:
    seconds = data.get("lasts_s")
    return at_s + float(seconds) if isinstance(seconds, int | float) else None


def _declared(record: Record, solved: Event | None) -> float | None:
    said = _last(record, "declared")
    if said:
        return said.at_s
    return solved.at_s if solved and solved.data.get("how") == "declared" else None


def _stage(record: Record, stage: str) -> float | None:
    return next((e.at_s for e in record.events if e.kind == "stage" and e.data.get("stage") == stage), None)


def _last(record: Record, kind: str) -> Event | None:
    return next((e for e in reversed(record.events) if e.kind == kind), None)


def _since(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(0.0, end - begin), 3)


def _ledger(record: Record) -> tuple[Lines, list[str]]:
    """The lines, and what is wrong with them."""
    try:
        content = (record.path / "artifacts" / LEDGER).read_bytes()
        lines = parse(content)
    except FileNotFoundError:
        return [], ["it has no ledger"]
    except ValueError as error:
        return [], [f"its ledger is damaged: {str(error).splitlines()[0]}"]
    written = _last(record, "ledger")
    if written and written.data.get("sha256") != hashlib.sha256(content).hexdigest():
        return lines, ["its ledger is not the one that was written"]
    return lines, []


def _usage(path: Path) -> tuple[_Usage, tuple[str, ...]]:
    try:
        found = _Usage.model_validate_json((path / "artifacts" / USAGE).read_bytes())
    except FileNotFoundError:
        return _Usage(), ()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return _Usage(), (f"its {USAGE} is damaged: {first['msg']}",)
    both = found.tokens_in + found.tokens_out
    tokens = found.tokens if found.tokens is not None else both or None
    return found.model_copy(update={"tokens": tokens}), ()
