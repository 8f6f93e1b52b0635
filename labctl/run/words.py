"""An episode in words, as it goes, and its verdict in the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.run.diagnosis_judge import JudgedDiagnosis
from labctl.run.verdict import DIMENSIONS, Outcome, Verdict

_STAGES: Mapping[str, str] = {
    "prepare": "preparing the lab",
    "gate": "gate: the service has to be healthy before anything is planted",
    "plant": "planting",
    "solve": "solving",
    "freeze": "freeze: the solver's sessions end",
    "soak": "soak: it has to stay well",
    "challenge": "challenge: what could undo the repair happens again",
    "judge": "judging",
    "recover": "recovering the lab",
}
_FAILURES: Mapping[str, str] = {
    "never_declared": "the repair was never declared",
    "off_the_permitted_list": "something was changed that the repair may not change",
    "cause_left": "a planted cause or its damage is left",
    "did_not_last": "the repair did not last",
    "out_of_bounds": "it was declared while the service was out of bounds",
    "integrity": "another check of the service fails",
}
MOST_REASONS = 12


def told(kind: str, data: Mapping[str, Any], *, spoil: bool = False) -> str:
    """An event as a line; empty for those that nobody waits for. What names a fault is left out unless `spoil`."""
    if kind == "stage":
        return _STAGES.get(str(data["stage"]), str(data["stage"]))
    if kind in ("planted", "planted_again", "bitten", "ended", "biting"):
        return f"  {kind}: {_pairs(data)}" if spoil and kind != "biting" else ""
    if kind == "submitted":
        return f"  diagnosis {data['number']} was submitted"
    if kind == "solved":
        return f"  the solver: {data['how']}"
    if kind in ("hardware", "challenge", "unclosed", "residue"):
        return f"  {kind}: {_pairs({k: v for k, v in data.items() if k != 'ended'})}"
    if kind == "sight" and data["blind"]:
        return f"  could not see: {_pairs(data['blind'])}"
    if kind == "void":
        return f"  void: {data['reason']}"
    return ""


def _pairs(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {str(value)[:160]}" for key, value in data.items())


def verdict_text(verdict: Verdict) -> str:
    """The verdict for people: the answer, its dimensions, its reasons."""
    lines = [f"{verdict.outcome.value.upper()}{_because(verdict)}"]
    if not verdict.void:
        dimensions = ", ".join(f"{name} {verdict.of(name).value}" for name in DIMENSIONS)
        lines.append(f"{dimensions}; diagnosis {verdict.diagnosis}")
    reasons = verdict.reasons
    lines += [f"  {reason}" for reason in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        lines.append(f"  and {len(reasons) - MOST_REASONS} more reasons")
    return "\n".join(lines)


def _because(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.FAIL and verdict.failure:
        return f": {_FAILURES[verdict.failure]}"
    return ""


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON data, with what follows from its findings."""
    return {
        "outcome": verdict.outcome, "failure": verdict.failure, "diagnosis": verdict.diagnosis,
        "void": verdict.void, "declared": verdict.declared,
        "dimensions": {name: verdict.of(name) for name in DIMENSIONS},
        "reasons": list(verdict.reasons), "findings": [f.model_dump(mode="json") for f in verdict.findings],
    }  # fmt: skip


def judged_text(found: JudgedDiagnosis) -> str:
    """What a model says of a diagnosis, in lines."""
    parts = ", ".join(f"{name} {round(3 * share)}/3" for name, share in found.parts.items())
    who = f"{found.model} ({found.served})" if found.served else found.model
    head = f"diagnosis, read by {who}: {found.outcome.value}{f', {found.yes}/9: {parts}' if parts else ''}"
    cost = "" if found.cost_usd is None or found.cached else f", US$ {found.cost_usd:.4f}"
    asked = "from the record" if found.cached else f"{found.tokens} tokens{cost}"
    return "\n".join((f"{head}{f' ({asked})' if found.request else ''}", *(f"  {one}" for one in found.reasons)))
