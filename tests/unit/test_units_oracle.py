"""The oracle of units: what it reads, what it accepts, and what it must not accept."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.oracles.units import Units
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

UNITS = Units(units=(("w1", "nginx.service"), ("w2", "postgresql@17-main.service")))


def shown(unit: str, **changed: str) -> str:
    fields = {
        "MainPID": "812", "NRestarts": "0", "Result": "success", "Id": unit, "ActiveState": "active",
        "SubState": "running", "UnitFileState": "enabled", "ActiveEnterTimestampMonotonic": "20000000",
        "ExecMainStartTimestampMonotonic": "19000000",
    }  # fmt: skip
    return "\n".join(f"{k}={v}" for k, v in {**fields, **changed}.items())


def lab(nginx: str = "", failed: str = "") -> Told:
    return Told([
        ("w1", "nginx.service", f"100.00\n{nginx or shown('nginx.service')}\n## failed\n{failed}"),
        ("w2", "postgresql@17-main", f"50.00\n{shown('postgresql@17-main.service')}\n-\n## failed\n"),
        ("w3", "failed", "50.00\n## failed\n"),
    ])  # fmt: skip


HEALTHY: Any = UNITS.look(lab())


def judged(after: Any, **changed: Any) -> Any:
    return UNITS.model_copy(update=changed).judge(HEALTHY, after, WINDOW)


def test_what_it_reads() -> None:
    assert HEALTHY["w1"]["units"]["nginx.service"]["runs_s"] == 80.0
    assert HEALTHY["w3"] == {"units": {}, "failed": ()}
    assert judged(HEALTHY).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"ActiveState": "failed", "SubState": "failed", "Result": "start-limit-hit"},
         "w1: nginx.service is failed (failed, start-limit-hit)"),
        ({"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "9"},
         "w1: nginx.service is activating (auto-restart, success)"),
        ({"ActiveEnterTimestampMonotonic": "95000000"},
         "w1: nginx.service runs for 5 s only, the window has 30 s"),
        ({"ExecMainStartTimestampMonotonic": "95000000"},
         "w1: nginx.service runs for 5 s only, the window has 30 s"),
        ({"UnitFileState": "disabled"}, "w1: nginx.service is disabled, was enabled"),
    ],
)  # fmt: skip
def test_what_it_rejects(changed: dict[str, str], reason: str) -> None:
    found = judged(UNITS.look(lab(shown("nginx.service", **changed))))
    assert (found.outcome, found.reasons) == (Outcome.FAIL, (reason,))


def test_a_unit_that_was_restarted_before_the_window_is_well() -> None:
    after = UNITS.look(lab(shown("nginx.service", ActiveEnterTimestampMonotonic="69000000", NRestarts="1")))
    assert judged(after).outcome is Outcome.PASS and judged(after).measures == {"restarts": 1}


def test_any_failed_unit_of_any_node() -> None:
    after = UNITS.look(lab(failed="logrotate.service\n"))
    assert judged(after).reasons == ("w1: logrotate.service has failed",)
    assert judged(after, may_fail=("logrotate.service",)).outcome is Outcome.PASS


def test_a_unit_that_is_not_there() -> None:
    after = copy.deepcopy(HEALTHY)
    del after["w2"]["units"]["postgresql@17-main.service"]
    assert judged(after).reasons == ("w2: there is no postgresql@17-main.service",)


def test_a_node_that_is_taken_away_and_one_that_is_lost() -> None:
    less = UNITS.model_copy(update={"without": ("w2", "w3")})
    seen = less.look(lab())
    assert [*seen] == ["w1"] and less.judge(seen, seen, WINDOW).outcome is Outcome.PASS
    with pytest.raises(LabError, match="w2 does not answer"):
        UNITS.look(Told([("w1", "", "1.0\n## failed\n"), ("w3", "", "1.0\n## failed\n")]))
