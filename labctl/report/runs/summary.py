"""The scores of a set of trials, most often those of one solver. Pure.

Void runs, those that ended without a verdict and those of which nothing can be said are in no rate; how many there
are is told beside them.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from labctl.report.runs.trial import Trial
from labctl.run.scores import Interval, bootstrap, pass_at_1, pass_hat_interval, share
from labctl.run.verdict import Outcome

KS = (3, 5)
BREAKDOWNS: Mapping[str, Callable[[Trial], str]] = {
    "noise": lambda trial: "clean" if trial.noise == "calm" else "noisy",
    "fault layer": lambda trial: trial.layer,
    "novelty": lambda trial: trial.novelty,
    "failure mode": lambda trial: trial.mode,
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rate(_Value):
    """An estimate, its 95 % interval, and what it was made from; None where there was nothing.

    One problem has no interval: nothing is known of how much problems differ.
    """

    value: float | None
    low: float | None
    high: float | None
    problems: int
    trials: int

    def __str__(self) -> str:
        return self._told(2)

    @property
    def seconds(self) -> str:
        """The same where it is a time."""
        return self._told(0)

    def _told(self, digits: int) -> str:
        if self.value is None:
            return "-"
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f} [one problem]"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


class Scores(_Value):
    """See `docs/reports.md` for what each of them means."""

    runs: int
    counted: Mapping[str, int]
    problems: int
    pass_at_1: Rate
    pass_at_1_unknown_fails: Rate
    pass_hat: Mapping[str, Rate]
    diagnosis: Rate
    diagnosis_grades: Mapping[str, int]
    both: Rate
    judge: Rate
    judge_models: tuple[str, ...]
    not_judged: int
    mitigated_if_diagnosed: Rate
    mitigated_if_not: Rate
    diagnosed_if_mitigated: Rate
    outcome_by_safety: Mapping[str, int]
    failures: Mapping[str, int]
    diagnosis_s: Rate
    diagnosis_timeouts: int
    mitigation_s: Rate
    mitigation_timeouts: int
    after_fix_median_s: float | None
    after_fix_trials: int
    actions_after_fix: float | None
    tokens: float | None
    cost_usd: float | None
    cost_per_pass_usd: float | None
    usage_trials: int
    by: Mapping[str, Mapping[str, Rate]]


def scores(trials: Sequence[Trial]) -> Scores:
    """All of them."""
    told = [trial for trial in trials if trial.counts]
    seen = [trial for trial in trials if trial.counted in ("passed", "failed", "unknown")]
    judged = _judged(told)
    lingering = [trial.after_fix_s for trial in told if trial.after_fix_s is not None]
    actions = [trial.actions_after_fix for trial in told if trial.actions_after_fix is not None]
    used = [trial for trial in told if trial.tokens is not None or trial.cost_usd is not None]
    costs = [trial.cost_usd for trial in told if trial.cost_usd is not None]
    priced_passes = sum(trial.passed for trial in told if trial.cost_usd is not None)
    return Scores(
        runs=len(trials), problems=len({trial.problem for trial in told}),
        counted={how: sum(t.counted == how for t in trials)
                 for how in ("passed", "failed", "unknown", "void", "unfinished")},
        pass_at_1=_rate(told, lambda t: t.passed), pass_at_1_unknown_fails=_rate(seen, lambda t: t.passed),
        pass_hat={str(k): _hat(told, k) for k in KS},
        diagnosis=_rate(told, lambda t: t.diagnosed), diagnosis_grades=_count(t.diagnosis for t in told),
        both=_rate(told, lambda t: t.passed and t.diagnosed),
        judge=_rate(judged, lambda t: t.judged is Outcome.PASS),
        judge_models=tuple(sorted({t.judge_model for t in judged if t.judge_model})),
        not_judged=len(told) - len(judged),
        mitigated_if_diagnosed=_share(told, lambda t: t.diagnosed, lambda t: t.passed),
        mitigated_if_not=_share(told, lambda t: not t.diagnosed, lambda t: t.passed),
        diagnosed_if_mitigated=_share(told, lambda t: t.passed, lambda t: t.diagnosed),
        outcome_by_safety=_count(f"{t.served.value}/{t.safe.value}" for t in told),
        failures=_count(t.failure for t in told if t.failure),
        diagnosis_s=_mean(told, lambda t: t.time_to_diagnosis_s),
        diagnosis_timeouts=sum(t.time_to_diagnosis_s >= t.limit_s for t in told),
        mitigation_s=_mean(told, lambda t: t.time_to_mitigation_s),
        mitigation_timeouts=sum(t.time_to_mitigation_s >= t.limit_s for t in told),
        after_fix_median_s=statistics.median(lingering) if lingering else None, after_fix_trials=len(lingering),
        actions_after_fix=statistics.fmean(actions) if actions else None,
        tokens=statistics.fmean(t.tokens for t in used if t.tokens is not None)
        if any(t.tokens is not None for t in used) else None,
        cost_usd=statistics.fmean(costs) if costs else None,
        cost_per_pass_usd=sum(costs) / priced_passes if priced_passes else None, usage_trials=len(used),
        by={name: {group: _rate(mine, lambda t: t.passed) for group, mine in grouped(told, of).items()}
            for name, of in BREAKDOWNS.items()},
    )  # fmt: skip


def _judged(told: Sequence[Trial]) -> list[Trial]:
    """Those of which the judge of diagnoses said yes or no. Once it judges, who submits nothing has failed."""
    asked = [trial for trial in told if trial.judged in (Outcome.PASS, Outcome.FAIL)]
    silent = [trial for trial in told if trial.judged is None and trial.diagnosis == "none"]
    return [*asked, *silent] if asked else []


def grouped(trials: Sequence[Trial], of: Callable[[Trial], str]) -> dict[str, list[Trial]]:
    """Trials by a word about each, sorted by it."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(of(trial), []).append(trial)
    return dict(sorted(found.items()))


def _by_problem(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    return grouped(trials, lambda trial: trial.problem)


def _rate(trials: Sequence[Trial], holds: Callable[[Trial], bool]) -> Rate:
    """The mean over problems of the share of trials for which it holds."""
    found = {name: [holds(trial) for trial in mine] for name, mine in _by_problem(trials).items()}
    return _made(pass_at_1(found), len(found), len(trials))


def _hat(trials: Sequence[Trial], k: int) -> Rate:
    found = {name: [trial.passed for trial in mine] for name, mine in _by_problem(trials).items()}
    enough = [passes for passes in found.values() if len(passes) >= k]
    return _made(pass_hat_interval(found, k), len(enough), sum(map(len, enough)))


def _share(trials: Sequence[Trial], among: Callable[[Trial], bool], holds: Callable[[Trial], bool]) -> Rate:
    counts = {}
    for name, mine in _by_problem(trials).items():
        chosen = [trial for trial in mine if among(trial)]
        counts[name] = (sum(map(holds, chosen)), len(chosen))
    sizes = [size for _, size in counts.values() if size]
    return _made(share(counts), len(sizes), sum(sizes))


def _mean(trials: Sequence[Trial], of: Callable[[Trial], float]) -> Rate:
    found = [statistics.fmean(map(of, mine)) for mine in _by_problem(trials).values()]
    return _made(bootstrap(found), len(found), len(trials))


def _made(found: Interval, problems: int, trials: int) -> Rate:
    if not trials:
        return Rate(value=None, low=None, high=None, problems=0, trials=0)
    if problems == 1:
        return Rate(value=found.value, low=None, high=None, problems=1, trials=trials)
    return Rate(value=found.value, low=found.low, high=found.high, problems=problems, trials=trials)


def _count(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
