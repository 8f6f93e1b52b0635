"""What findings add up to."""

from __future__ import annotations

import itertools
import json

import pytest

from labctl.run.verdict import Aspect, FailureClass, Finding, Outcome, Verdict, worst

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN


def finding(aspect: Aspect, outcome: Outcome = PASS) -> Finding:
    return Finding(oracle=f"{aspect} oracle", aspect=aspect, outcome=outcome, reasons=(f"{outcome} said",))


def verdict(declared: bool = True, void: str = "", **outcomes: Outcome) -> Verdict:
    aspects: tuple[Aspect, ...] = ("objective", "cause", "integrity", "scope", "durability")
    findings = tuple(finding(a, outcomes.get(a, PASS)) for a in aspects)
    return Verdict(findings=findings, declared=declared, void=void)


def test_fail_goes_before_unknown_and_unknown_before_pass() -> None:
    for size in range(1, 4):
        for some in itertools.product(Outcome, repeat=size):
            expected = FAIL if FAIL in some else UNKNOWN if UNKNOWN in some else PASS
            assert worst(some) is expected
    assert worst(()) is UNKNOWN, "nothing asked is nothing known"


def test_all_well_passes_and_nothing_looked_at_does_not() -> None:
    assert verdict().outcome is PASS and verdict().failure is None and verdict().reasons == ()
    assert Verdict(declared=True).outcome is UNKNOWN
    only = Verdict(findings=(finding("objective"), finding("scope")), declared=True)
    assert only.outcome is UNKNOWN, "durability was not looked at"


@pytest.mark.parametrize(
    ("failed", "named"),
    [
        (("objective",), "out_of_bounds"),
        (("integrity",), "integrity"),
        (("integrity", "objective"), "out_of_bounds"),
        (("objective", "durability"), "out_of_bounds"),
        (("integrity", "durability"), "did_not_last"),
        (("durability", "cause"), "cause_left"),
        (("cause", "scope", "objective"), "off_the_permitted_list"),
    ],
)
def test_the_first_failure_names_its_class(failed: tuple[str, ...], named: FailureClass) -> None:
    findings = verdict().findings
    found = [f.model_copy(update={"outcome": FAIL}) if f.aspect in failed else f for f in findings]
    assert Verdict(findings=tuple(found), declared=True).failure == named
    assert Verdict(findings=tuple(found), declared=False).failure == "never_declared"


def test_not_declaring_fails_though_all_is_well_but_never_where_nothing_is_known() -> None:
    assert verdict(declared=False).outcome is FAIL
    assert verdict(declared=False).reasons == ("the repair was never declared complete",)
    assert verdict(declared=False, objective=UNKNOWN).outcome is UNKNOWN


def test_void_is_unknown_whatever_was_found() -> None:
    found = verdict(void="the fault never bit", objective=FAIL)
    assert (found.outcome, found.failure) == (UNKNOWN, None)
    assert found.reasons == ("void: the fault never bit",)


def test_reasons_come_worst_first() -> None:
    found = verdict(objective=UNKNOWN, scope=FAIL)
    assert found.reasons == ("scope oracle: fail said", "objective oracle: unknown said")


def test_it_survives_json() -> None:
    found = verdict(objective=FAIL)
    assert Verdict.model_validate_json(found.model_dump_json()) == found


def test_what_was_never_answered_survives_json() -> None:
    late = finding("objective", FAIL).model_copy(update={"measures": {"p95_s": float("inf"), "n": 3, "what": "x"}})
    text = Verdict(findings=(late,), declared=True).model_dump_json()
    assert json.loads(text)["findings"][0]["measures"]["p95_s"] == "Infinity"
    again = Verdict.model_validate_json(text)
    assert again.findings[0].measures == {"p95_s": float("inf"), "n": 3, "what": "x"}
    assert again.model_dump_json() == text
