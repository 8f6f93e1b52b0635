"""What every fault of the catalogue promises, whatever it is: design, section 5."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from node_agent.catalog import catalog, find_fault
from node_agent.errors import (
    AgentError,
    ApplyError,
    ConflictError,
    NotFoundError,
    Refusal,
    StoppedError,
    StorageError,
    StuckError,
)
from node_agent.fault import build_fault, tag_of
from node_agent.injector import Injector
from node_agent.journal import decode
from node_agent.residue import CATEGORIES
from node_agent.steps import load_step
from node_agent.undo import applied_steps, undo_all
from tests.contract.conftest import Rig
from tests.contract.simulated import Killed, SimulatedHost

Case = tuple[str, dict[str, Any]]


def test_life_from_plan_to_gone(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    plan = injector.plan("inj-1", *case)
    assert rig.is_healthy(), "planning changed the machine"
    assert plan.steps and plan.notes.backend and plan.target is not None and plan.target.describe()
    view = injector.apply("inj-1", *case, 60)
    assert view.state == "active" and view.evidence is not None and view.evidence.armed
    assert not rig.is_healthy(), "an active fault shows in the kernel"
    assert any(d.injection == "inj-1" for d in injector.residue())
    (ended,) = injector.recover(("inj-1",), "recover")
    assert (ended.state, ended.residue) == ("recovered", ())
    assert ended.evidence is not None and not ended.evidence.armed and ended.evidence.hits == view.evidence.hits
    assert rig.is_healthy() and injector.residue() == () and rig.open_journals() == []


def test_steps_are_data(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    first, second = injector.plan("inj-1", *case), injector.plan("inj-1", *case)
    assert first.steps == second.steps, "the same facts and seed give the same steps"
    for step in first.steps:
        assert load_step(step.model_dump(mode="json")) == step
        assert step.describe() and "\n" not in step.describe()
        assert all(r.kind in CATEGORIES for r in step.resources())
    marked = [s for s in first.steps if tag_of("inj-1") in s.model_dump_json()]
    assert marked, "what a fault makes bears the mark of its injection"


def test_documented(case: Case) -> None:
    cls = catalog()[case[0]]
    assert cls.summary and cls.operator_sees
    assert all(field.description for field in cls.model_fields.values())
    assert build_fault(cls, case[1]).model_dump(mode="json")


def _records_of_a_whole_life(rig: Rig, case: Case) -> tuple[int, int]:
    seen: list[int] = []
    injector, _ = rig.agent(after_append=lambda _, count: seen.append(count))
    injector.apply("inj-0", *case, 60)
    active = seen[-1]
    injector.recover(None, "recover")
    return active, seen[-1]


def test_killed_after_every_journal_record(rig: Rig, case: Case) -> None:
    _, records = _records_of_a_whole_life(rig, case)
    assert records > 6
    for number in range(1, records + 1):
        injector = rig.killed_at_record(number)
        if rig.apply(injector, case):
            with pytest.raises(Killed):
                injector.recover(None, "recover")
        after = rig.restart()
        assert rig.is_healthy(), f"killed after record {number}"
        assert after.residue() == () and rig.open_journals() == [], f"killed after record {number}"


def test_killed_before_every_change(rig: Rig, case: Case) -> None:
    injector, host = rig.agent()
    injector.apply("inj-0", *case, 60)
    injector.recover(None, "recover")
    for number in range(1, host.changes + 1):
        injector, _ = rig.agent(die_at=number)
        if rig.apply(injector, case):
            with pytest.raises(Killed):
                injector.recover(None, "recover")
        rig.restart()
        assert rig.is_healthy() and rig.open_journals() == [], f"killed before change {number}"


def test_killed_again_while_undoing(rig: Rig, case: Case) -> None:
    injector, host = rig.agent()
    injector.apply("inj-0", *case, 60)
    applied = host.changes
    injector.recover(None, "recover")
    for number in range(1, host.changes - applied + 1):
        injector, _ = rig.agent()
        injector.apply(rig.id, *case, 60)
        second, _ = rig.agent(die_at=number)
        with pytest.raises(Killed):
            second.start()
        rig.restart()
        assert rig.is_healthy() and rig.open_journals() == [], f"killed again before change {number}"


def test_reboot_with_the_fault_standing(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    rig.kernel.reboot()
    after = rig.restart()
    (view,) = after.injections(ended=True)
    assert (view.state, view.reason) == ("recovered", "restart")
    assert rig.is_healthy() and rig.open_journals() == []


def test_every_corrupt_journal_line(rig: Rig, case: Case) -> None:
    active, _ = _records_of_a_whole_life(rig, case)
    for line in range(active):
        rig.apply(rig.agent()[0], case)
        path = rig.state_dir / "journal" / f"{rig.id}.journal"
        lines = path.read_bytes().split(b"\n")
        lines[line] = lines[line][:-4] + b"####"
        path.write_bytes(b"\n".join(lines))
        rig.restart()
        assert rig.is_healthy(), f"line {line} was corrupt"
        assert rig.open_journals() == []


def test_undo_twice_equals_once(rig: Rig, case: Case) -> None:
    injector, host = rig.agent()
    risks = injector.plan("inj-1", *case).notes.risks
    injector.apply("inj-1", *case, 60)
    records, corrupt = decode((rig.state_dir / "journal" / "inj-1.journal").read_bytes())
    steps = applied_steps(records, corrupt)
    for _ in range(2):
        undone = undo_all(host, steps, lambda one: None)
        assert undone.left == () and (undone.lost == () or "data_loss" in risks)
        assert rig.is_healthy()


def test_a_prefix_without_did_is_undone(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    records, _ = decode((rig.state_dir / "journal" / "inj-1.journal").read_bytes())
    without = [r for r in records if r["rec"] != "did"]
    assert applied_steps(without, 0) == applied_steps(records, 0)


def test_lease_ends_it_whatever_the_wall_clock_says(rig: Rig, case: Case) -> None:
    injector, host = rig.agent()
    injector.apply("inj-1", *case, 60)
    host.set_time(rig.kernel.wall - 3600)
    rig.kernel.clock += 59
    injector.tick()
    assert injector.view("inj-1").state == "active"
    rig.kernel.clock += 2
    injector.tick()
    view = injector.view("inj-1")
    assert (view.state, view.reason) == ("recovered", "expired") and rig.is_healthy()


def test_a_bug_in_ending_one_does_not_keep_the_others(
    rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    buggy = dict(injector._live)["inj-1"]
    rig.kernel.clock += 61
    with monkeypatch.context() as patch:
        patch.setattr(buggy.applied[0].step.__class__, "revert", _bug)
        injector.tick()
    assert injector.view("inj-1").state == "stuck" and "ZeroDivisionError" in injector.view("inj-1").residue[0]
    rig.kernel.clock += 2
    injector.tick()
    assert injector.view("inj-1").state == "recovered" and rig.is_healthy()


def _bug(*_: object) -> None:
    raise ZeroDivisionError


def test_extend_counts_from_now(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    rig.kernel.clock += 50
    assert injector.extend("inj-1", 100).expires_in_s == pytest.approx(100)
    rig.kernel.clock += 99
    injector.tick()
    assert injector.view("inj-1").state == "active"
    injector.recover(None, "recover")
    with pytest.raises(Refusal, match="recovered"):
        injector.extend("inj-1", 10)


def test_twenty_at_once_are_one(rig: Rig, case: Case) -> None:
    injector, host = rig.agent()
    with ThreadPoolExecutor(20) as pool:
        views = list(pool.map(lambda _: injector.apply("inj-1", *case, 60), range(20)))
    assert {v.state for v in views} == {"active"} and len(injector.injections()) == 1
    at_once = host.changes
    injector.recover(None, "recover")
    single, once = rig.agent()
    single.apply("inj-2", *case, 60)
    assert once.changes == at_once, "the fault was applied once"


def test_a_retry_that_comes_after_a_restart_plants_nothing(rig: Rig, case: Case) -> None:
    rig.agent()[0].apply("inj-1", *case, 60)
    rig.restart()
    later = rig.restart()
    assert later.apply("inj-1", *case, 60).state == "recovered" and rig.is_healthy()


def test_the_id_of_another_injection_is_refused(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    with pytest.raises(ConflictError, match="inj-1"):
        injector.apply("inj-1", case[0], {**case[1], "seed": 99}, 60)


def test_the_same_place_twice_names_the_holder_or_composes(rig: Rig, case: Case) -> None:
    """A fault that holds nothing but what it makes composes with itself; both must then come out again."""
    injector, _ = rig.agent()
    first, second = (
        [r for step in injector.plan(name, *case).steps for r in step.resources()] for name in ("inj-1", "inj-2")
    )
    injector.apply("inj-1", *case, 60)
    if any(one.conflicts(other) for one in first for other in second):
        with pytest.raises(ConflictError, match="inj-1"):
            injector.apply("inj-2", *case, 60)
    elif _composes(injector, case):
        (over,) = injector.recover(("inj-1",), "recover")
        assert over.state == "recovered" and injector.view("inj-2").state == "active" and not rig.is_healthy()
    injector.recover(None, "recover")
    assert rig.is_healthy()


def _composes(injector: Injector, case: Case) -> bool:
    """Whether a second one is planted beside the first; where the two have no common effect, it names that."""
    try:
        return injector.apply("inj-2", *case, 60).state == "active"
    except ConflictError as clash:
        assert "inj-1" in clash.message
        return False


def test_recover_twice_and_what_never_was(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    first, second = injector.recover(("inj-1",), "recover"), injector.recover(("inj-1",), "again")
    assert first[0].state == second[0].state == "recovered" and second[0].reason == "recover"
    assert injector.recover(None, "recover") == ()
    with pytest.raises(NotFoundError):
        injector.recover(("never",), "recover")


def test_stop_refuses_new_faults_until_cleared(rig: Rig, case: Case) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    injector.set_stopped(True)
    injector.recover(None, "stop")
    assert rig.is_healthy()
    restarted = rig.restart()
    with pytest.raises(StoppedError):
        restarted.apply("inj-2", *case, 60)
    restarted.set_stopped(False)
    assert restarted.apply("inj-2", *case, 60).state == "active"


def test_a_full_disk_refuses_before_anything_changes(
    rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector, host = rig.agent()
    monkeypatch.setattr("os.fsync", _no_space)
    with pytest.raises(StorageError, match="nothing was changed"):
        injector.apply("inj-1", *case, 60)
    assert host.changes == 0 and rig.is_healthy()


def test_a_disk_that_fills_up_later_does_not_keep_the_fault(
    rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", *case, 60)
    size = (rig.state_dir / "journal" / "inj-1.journal").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", _no_space)
        (view,) = injector.recover(None, "recover")
    assert view.state == "recovered" and rig.is_healthy()
    assert size > 64 * 1024, "room for recovery is reserved"
    rig.restart()
    assert rig.is_healthy() and rig.open_journals() == []


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_fault_that_does_not_bite_is_undone(rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    injector, _ = rig.agent()
    cls = find_fault(case[0])

    def toothless(*_: object) -> None:
        raise ApplyError("the read did not fail")

    monkeypatch.setattr(cls, "prove", toothless)
    with pytest.raises(ApplyError, match="undone"):
        injector.apply("inj-1", *case, 60)
    assert rig.is_healthy()


def test_a_failure_that_cannot_be_undone_is_told_from_one_that_was(
    rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector, _ = rig.agent()
    first = type(injector.plan("inj-1", *case).steps[0])

    def toothless(*_: object) -> None:
        raise ApplyError("the read did not fail")

    with monkeypatch.context() as patch:
        patch.setattr(find_fault(case[0]), "prove", toothless)
        patch.setattr(first, "revert", _no_space)
        for _ in range(2):  # the second asks about the same id
            with pytest.raises(StuckError, match="could not be undone"):
                injector.apply("inj-1", *case, 60)
    rig.kernel.clock += 2
    injector.tick()
    with pytest.raises(ApplyError, match="undone"):
        injector.apply("inj-1", *case, 60)
    assert rig.is_healthy()


def test_a_bug_in_a_step_is_undone_too(rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    injector, _ = rig.agent()
    last = type(injector.plan("inj-1", *case).steps[-1])

    def bug(self: object, host: SimulatedHost) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(last, "apply", bug)
    with pytest.raises(ZeroDivisionError):
        injector.apply("inj-1", *case, 60)
    assert rig.is_healthy()


def test_what_cannot_be_undone_is_stuck_and_tried_again(
    rig: Rig, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    injector, _ = rig.agent()
    first = type(injector.plan("inj-1", *case).steps[0])
    injector.apply("inj-1", *case, 60)
    with monkeypatch.context() as patch:
        patch.setattr(first, "revert", _no_space)
        (view,) = injector.recover(None, "recover")
        assert view.state == "stuck" and view.residue
    rig.kernel.clock += 2
    injector.tick()
    assert injector.view("inj-1").state == "recovered" and rig.is_healthy()


@pytest.mark.parametrize("lease_s", [-1.0, float("nan"), float("inf"), 86401.0])
def test_no_lease_is_for_ever(rig: Rig, case: Case, lease_s: float) -> None:
    injector, host = rig.agent()
    with pytest.raises(Refusal) as refused:
        injector.apply("inj-1", *case, lease_s)
    assert refused.value.field == "for" and host.changes == 0


def test_typos_widen_nothing(rig: Rig, case: Case) -> None:
    injector, host = rig.agent()
    with pytest.raises(NotFoundError) as missing:
        injector.apply("inj-1", case[0][:-1] + "x", {}, 60)
    assert case[0] in missing.value.allowed
    with pytest.raises(Refusal) as refused:
        injector.apply("inj-1", case[0], {**case[1], "fiel": 1}, 60)
    assert refused.value.field == "fiel" and "seed" in refused.value.allowed
    with pytest.raises(AgentError):
        injector.apply("INJ 1", *case, 60)
    assert host.changes == 0
