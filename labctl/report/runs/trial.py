"""One run as reports count it. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from labctl.run.verdict import DiagnosisGrade, FailureClass, Outcome

Counted = str
"""How a run counts: `passed`, `failed`, `unknown` (the lab broke, a node was lost), `void` (a fault never bit, the
gate failed, residue) or `unfinished` (there is no verdict). Only the first two are in rates."""


class Trial(BaseModel):
    """Times are seconds from when the solver started; None where it never came. `limit_s` is the cap.

    `served`, `safe`, `lasting`: the dimensions of the verdict. `judged`: what the judge of diagnoses said, None
    where nobody asked it. `healthy_s`: from then until the declaration clients were served; None where they were
    never out of service, or never back. `after_fix_s`: from then to the declaration, and `actions_after_fix` what
    the solver did in it that the record has: submissions and hardware actions. Tokens and cost are what the solver
    says of itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: str
    id: str
    problem: str
    catalogue: str
    solver: str
    noise: str
    seed: int
    started: str
    mode: str = "unknown"
    layer: str = "unknown"
    novelty: str = "unknown"
    counted: Counted
    outcome: Outcome
    served: Outcome
    safe: Outcome
    lasting: Outcome
    failure: FailureClass | None = None
    reasons: tuple[str, ...] = ()
    diagnosis: DiagnosisGrade = "none"
    judged: Outcome | None = None
    judge_yes: int | None = None
    judge_model: str = ""
    limit_s: float
    diagnosed_s: float | None = None
    declared_s: float | None = None
    healthy_s: float | None = None
    after_fix_s: float | None = None
    actions_after_fix: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None

    @property
    def counts(self) -> bool:
        """Whether it is in rates."""
        return self.counted in ("passed", "failed")

    @property
    def passed(self) -> bool:
        return self.counted == "passed"

    @property
    def diagnosed(self) -> bool:
        """The triples are those of the cause."""
        return self.diagnosis == "exact"

    @property
    def time_to_diagnosis_s(self) -> float:
        """When the right diagnosis was submitted; the cap where none was."""
        return self._capped(self.diagnosed_s if self.diagnosed else None)

    @property
    def time_to_mitigation_s(self) -> float:
        """When the repair was declared, if it passes; the cap where it does not."""
        return self._capped(self.declared_s if self.passed else None)

    def _capped(self, seconds: float | None) -> float:
        return self.limit_s if seconds is None else min(seconds, self.limit_s)

    def row(self) -> Mapping[str, Any]:
        """As a row of a table: plain values, and those that follow from others."""
        data = self.model_dump(mode="json", exclude={"reasons"})
        return {
            **data,
            "time_to_diagnosis_s": self.time_to_diagnosis_s,
            "time_to_mitigation_s": self.time_to_mitigation_s,
            "reasons": "; ".join(self.reasons),
        }
