"""Hardware faults on a machine of plain objects: each through its life, and killed at every command on the way."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabError, NodeDirtyError, UsageError
from labctl.hardware import overlay
from labctl.hardware.catalog import hardware_catalog
from labctl.hardware.journal import Journal
from labctl.hardware.settling import settle
from node_agent.fault import build_fault
from tests.unit.hardware_bench import Killed, ToyMachine

CASES = [(name, dict(example)) for name, cls in hardware_catalog().items() for example in cls.examples]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(CASES)]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """qemu-img makes files and says which it committed."""
    done: list[str] = []

    def qemu_img(argv: tuple[str, ...], what: str, **more: Any) -> str:
        if argv[1] == "create":
            Path(argv[-2]).write_text("overlay")
        else:
            assert argv[1] == "commit" and Path(argv[-1]).exists()
            done.append(Path(argv[-1]).name)
        return ""

    monkeypatch.setattr(overlay, "run", qemu_img)
    return done


@pytest.fixture
def machine(tmp_path: Path, commits: list[str]) -> Iterator[ToyMachine]:
    """Must be as it was when the test ends, with no live record."""
    one = ToyMachine(tmp_path)
    before = copy.deepcopy(one.qemu.state())
    yield one
    assert one.on and one.qemu.state() == before
    assert Journal(tmp_path, "w1").live() == ()
    assert list(one.places.node.glob("*.qcow2")) == []


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=IDS)
def test_life(machine: ToyMachine, name: str, parameters: Mapping[str, Any]) -> None:
    plan = machine.injector().plan("abc", name, parameters)
    assert plan.fault == name and plan.target and plan.backend and plan.steps and plan.covers
    view = machine.injector().apply("abc", name, parameters, 60)
    assert (view.state, view.fault, view.lease_s) == ("active", name, 60) and machine.woken >= 1
    assert view.evidence is not None and view.evidence.armed
    (listed,) = machine.injector().list()
    assert listed.id == "abc" and listed.evidence is not None and listed.evidence.armed
    assert machine.injector().apply("abc", name, parameters, 60).state == "active", "the same is the same"
    (after,) = machine.injector().recover(("abc",))
    assert (after.state, after.reason, after.residue) == ("recovered", "recover", ())
    assert machine.injector().recover(("abc",))[0].state == "recovered", "again is fine"
    assert machine.injector().list() == ()
    assert [one.id for one in machine.injector().list(ended=True)] == ["abc"]


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=IDS)
def test_killed_at_every_command_the_next_who_looks_heals(
    tmp_path: Path, commits: list[str], name: str, parameters: Mapping[str, Any]
) -> None:
    for step in range(100):
        machine = ToyMachine(tmp_path / str(step))
        before = copy.deepcopy(machine.qemu.state())
        machine.qemu.kill_at = step
        try:
            machine.injector().apply("abc", name, parameters, 60)
            machine.injector().recover(("abc",))
        except Killed:
            machine.qemu.revive()
            machine.now += 61
            assert not machine.injector().tend()
        else:
            assert step > 0
            break
        assert machine.qemu.state() == before and machine.on, f"killed at command {step}"
        assert list(machine.places.node.glob("*.qcow2")) == []
    else:
        raise AssertionError("it never ends")


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=IDS)
def test_declared_signs_are_valid_with_and_without_a_place(name: str, parameters: Mapping[str, Any]) -> None:
    fault = build_fault(hardware_catalog()[name], parameters)
    assert all(sign.what for sign in fault.signs(None))


def test_the_lease_ends(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "nic_link_down", {}, 60)
    machine.now += 59
    assert machine.injector().tend() and not machine.qemu.link
    machine.injector().extend("abc", 100)
    machine.now += 99
    assert machine.injector().tend()
    machine.now += 2
    assert not machine.injector().tend() and machine.qemu.link
    (over,) = machine.injector().list(ended=True)
    assert (over.state, over.reason) == ("recovered", "expired")


def test_power_that_is_lost_ends_the_fault_and_keeps_what_was_written(
    machine: ToyMachine, commits: list[str]
) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["2048+8"]}, 60)
    machine.lose_power()
    machine.give_power()
    (view,) = machine.injector().list(ended=True)
    assert (view.state, view.reason) == ("recovered", "power lost")
    assert commits == ["gf-abc.qcow2"]


def test_after_a_reboot_of_this_computer_all_is_over(machine: ToyMachine, commits: list[str]) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["2048+8"]}, 600)
    machine.boot = "boot-2"
    machine.lose_power()
    assert not machine.injector().tend()
    assert commits == ["gf-abc.qcow2"] and not machine.on, "it does not boot what nobody asked for"
    machine.give_power()


def test_before_a_boot_the_newest_data_come_into_the_disk(machine: ToyMachine, commits: list[str]) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["9"]}, 60)
    machine.lose_power()
    assert settle(machine.directory, machine.places, "power on", keep=True) == ("medium_error abc",)
    assert commits == ["gf-abc.qcow2"] and settle(machine.directory, machine.places, "power on", keep=True) == ()
    machine.give_power()


def test_before_a_restore_they_are_thrown_away(machine: ToyMachine, commits: list[str]) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["9"]}, 60)
    machine.lose_power()
    settle(machine.directory, machine.places, "reset", keep=False)
    assert commits == []
    machine.give_power()


def test_the_guest_stands_still_while_the_overlay_is_given_up(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["9"]}, 60)
    machine.qemu.commands.clear()
    machine.injector().recover(("abc",))
    order = [c for c in machine.qemu.commands if c in ("block-commit", "stop", "block-job-complete", "cont")]
    assert order == ["block-commit", "stop", "block-job-complete", "cont"]


def test_a_frozen_machine_stays_frozen_when_another_fault_heals(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["9"]}, 60)
    machine.injector().apply("ice", "node_frozen", {}, 60)
    assert machine.injector().recover(("abc",))[0].state == "recovered"
    assert not machine.qemu.running
    machine.injector().recover(("ice",))


def test_two_faults_do_not_hold_the_same_part(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "medium_error", {"sector": ["9"]}, 60)
    with pytest.raises(UsageError, match="medium is held by medium_error, abc"):
        machine.injector().apply("def", "disk_removed", {}, 60)
    machine.injector().apply("slow", "disk_degraded", {}, 60)
    assert {one.id for one in machine.injector().recover(everything=True)} == {"abc", "slow"}


def test_an_id_names_one_injection(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "nic_link_down", {}, 60)
    with pytest.raises(UsageError, match="abc is another injection, of nic_link_down"):
        machine.injector().apply("abc", "nmi", {}, 60)
    machine.injector().recover(("abc",))


def test_stop_refuses_new_faults(machine: ToyMachine) -> None:
    machine.injector().journal.set_stopped(True)
    with pytest.raises(LabError, match="labctl stop is in force"):
        machine.injector().apply("abc", "nmi", {}, 60)
    machine.injector().journal.set_stopped(False)


def test_what_cannot_be_planted_is_taken_back(machine: ToyMachine) -> None:
    machine.qemu.refuse = "qom-set"
    with pytest.raises(LabError, match="qom-set"):
        machine.injector().apply("abc", "medium_error", {"sector": ["9"]}, 60)
    (view,) = machine.injector().list(ended=True)
    assert (view.state, view.reason) == ("recovered", "apply_failed") and "qom-set" in view.error


def test_what_cannot_be_undone_is_stuck_and_tried_again(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "disk_degraded", {}, 600)
    machine.qemu.refuse = "block_set_io_throttle"
    (view,) = machine.injector().recover(("abc",))
    assert view.state == "stuck" and "refused" in view.residue[0]
    assert machine.injector().tend() and machine.injector().list()[0].state == "stuck", "not at once"
    machine.qemu.refuse = ""
    machine.now += 3
    assert not machine.injector().tend()


def test_planting_that_fails_and_cannot_be_undone_says_so(machine: ToyMachine) -> None:
    machine.qemu.refuse = "set_link"
    with pytest.raises(NodeDirtyError, match="could not be undone"):
        machine.injector().apply("abc", "nic_link_down", {}, 60)
    machine.qemu.refuse = ""
    machine.now += 3
    assert not machine.injector().tend()


def test_bursts_come_and_go_with_the_watchdog(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "disk_degraded", {"stall": True, "schedule": "burst:3/10"}, 600)
    seen = []
    for _ in range(26):
        seen.append(bool(machine.qemu.throttle))
        machine.now += 1
        machine.injector().tend()
    assert seen[:13] == [True] * 3 + [False] * 10 and seen[13:] == seen[:13]
    machine.injector().recover(("abc",))


def test_an_agent_that_does_not_answer_costs_only_signs(machine: ToyMachine) -> None:
    machine.agent.silent = True
    view = machine.injector().apply("abc", "nmi", {}, 60)
    assert view.evidence is not None and view.evidence.signs == ()
    machine.injector().recover(("abc",))


def test_a_machine_that_is_off_is_refused(machine: ToyMachine) -> None:
    machine.lose_power()
    with pytest.raises(LabError, match="w1 is off"):
        machine.injector().apply("abc", "nmi", {}, 60)
    machine.give_power()


def test_what_the_guest_lost_is_told(machine: ToyMachine) -> None:
    machine.injector().apply("abc", "disk_removed", {}, 60)
    (view,) = machine.injector().recover(("abc",))
    assert view.data_lost == ("/srv/data/new (4 bytes)",)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "a file or sectors"),
        ({"file": "/x", "sector": ["1"]}, "a file or sectors"),
        ({"sector": ["1+0"]}, "START"),
        ({"sector": ["x"]}, "START"),
        ({"sector": ["0+1025"]}, "at most 1024"),
        ({"sector": ["1048576"]}, "behind the end"),
    ],
)
def test_sectors_that_are_none(machine: ToyMachine, parameters: Mapping[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        machine.injector().plan("abc", "medium_error", parameters)
