"""Steps and refusals of the faults made of the kernel's own facilities, on a simulated machine."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from node_agent.errors import ConflictError, Refusal
from node_agent.facts import gather_facts
from node_agent.fault import build_fault
from node_agent.faults.kernel.kernel_function_error import KernelFunctionError
from node_agent.faults.kernel.kernel_slab_failure import KernelSlabFailure
from node_agent.probe import run_probes
from node_agent.residue import look
from node_agent.steps.failing_function import FailingFunction
from node_agent.steps.file_value import FileValue
from node_agent.steps.task_flags import FLAGGED_TASKS, Process, TaskFlags, flagged_tasks
from tests.contract.facilities import DEBUGFS
from tests.contract.simulated import SimulatedHost, fresh_kernel

DIAL = f"{DEBUGFS}/failslab/probability"


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


@pytest.mark.parametrize("path", ["/etc/passwd", "/sys/../etc/passwd", "relative"])
def test_only_files_of_the_kernel_have_values(path: str) -> None:
    with pytest.raises(ValidationError, match="is not below"):
        FileValue(path=path, value="1")


def test_a_sysctl_is_the_resource_that_residue_knows() -> None:
    assert FileValue(path="/proc/sys/vm/swappiness", value="1").resources()[0].kind == "sysctl"
    assert FileValue(path=DIAL, value="1").resources()[0].name == DIAL


def test_a_value_is_put_back_as_it_was(host: SimulatedHost) -> None:
    host.kernel.texts[DIAL] = "7\n"
    step = FileValue(path=DIAL, value="50", default="0")
    undo = step.capture(host)
    step.apply(host)
    assert step.leftovers(host, undo) == (f"{DIAL} says 50, it said 7",)
    for _ in range(2):
        step.revert(host, undo)
        assert host.kernel.texts[DIAL] == "7" and step.leftovers(host, undo) == ()


def test_without_its_journal_a_value_becomes_the_kernels_own(host: SimulatedHost) -> None:
    step = FileValue(path=DIAL, value="50", default="0")
    step.apply(host)
    step.revert(host, None)
    assert host.kernel.texts[DIAL] == "0" and step.leftovers(host, None) == ()


def test_a_dial_that_somebody_turned_is_left_alone(host: SimulatedHost) -> None:
    host.kernel.texts[DIAL] = "7"
    with pytest.raises(ConflictError, match="says 7, not 0: somebody else"):
        FileValue(path=DIAL, value="50", default="0", exclusive=True).capture(host)


def test_a_file_that_went_took_its_value_along(host: SimulatedHost) -> None:
    step = FileValue(path="/sys/block/dm-0/make-it-fail", value="1", default="0")
    undo = step.capture(host)
    step.apply(host)
    del host.kernel.texts[step.path]
    step.revert(host, undo)
    assert step.leftovers(host, undo) == () and step.path not in host.kernel.texts


def test_flags_go_to_all_threads_and_are_taken_from_whoever_inherited_them(host: SimulatedHost) -> None:
    step = TaskFlags(processes=(Process(pid=700, started=7000),))
    undo = step.capture(host)
    step.apply(host)
    assert flagged_tasks(host) == ("/proc/700/task/700/make-it-fail", "/proc/700/task/702/make-it-fail")
    host.kernel.texts["/proc/701/task/701/make-it-fail"] = "1"
    assert look(host)["value"][FLAGGED_TASKS] == "3 tasks"
    step.revert(host, undo)
    assert flagged_tasks(host) == () == step.leftovers(host, undo)


def test_a_flag_of_somebody_else_is_left_alone(host: SimulatedHost) -> None:
    host.kernel.texts["/proc/701/task/701/make-it-fail"] = "1"
    with pytest.raises(ConflictError, match="somebody else has marked 1 tasks"):
        TaskFlags(processes=(Process(pid=700, started=7000),)).capture(host)


def test_a_later_process_of_the_same_number_is_no_victim(host: SimulatedHost) -> None:
    with pytest.raises(ProcessLookupError):
        TaskFlags(processes=(Process(pid=700, started=1),)).apply(host)
    assert flagged_tasks(host) == ()


def test_a_function_that_somebody_else_lets_fail_stays(host: SimulatedHost) -> None:
    host.write_text(f"{DEBUGFS}/fail_function/inject", "should_fail_alloc_page")
    step = FailingFunction(function="__x64_sys_fsync", answer=-5)
    with pytest.raises(ConflictError, match="should_fail_alloc_page"):
        step.capture(host)
    step.revert(host, None)
    assert host.kernel.texts[f"{DEBUGFS}/fail_function/inject"] == "should_fail_alloc_page"


def test_an_errno_is_written_as_the_kernel_wants_it(host: SimulatedHost) -> None:
    FailingFunction(function="__x64_sys_fsync", answer=-5).apply(host)
    assert host.kernel.texts[f"{DEBUGFS}/fail_function/__x64_sys_fsync/retval"] == "0xfffffffffffffffb"


@pytest.mark.parametrize(
    ("parameters", "field", "why"),
    [
        ({}, "pid", "give one of them"),
        ({"pid": 700, "unit": "victim"}, "pid", "give one of them"),
        ({"pid": 1}, "pid", "is pid 1"),
        ({"pid": 800}, "pid", "is sshd"),
        ({"pid": 4242}, "pid", "is the agent"),
        ({"pid": 9}, "pid", "no process 9"),
        ({"unit": "absent"}, "unit", "does not run"),
        ({"unit": "a/b"}, "unit", "pattern"),
        ({"pid": 700, "probability_percent": 101}, "probability_percent", "less than or equal to 100"),
    ],
)
def test_who_must_not_be_a_victim(host: SimulatedHost, parameters: dict[str, Any], field: str, why: str) -> None:
    facts = gather_facts(host, "w2", run_probes(host))
    with pytest.raises(Refusal, match=why) as refused:
        build_fault(KernelSlabFailure, parameters).locate(host, facts)
    assert refused.value.field == field


def test_a_tree_has_the_children_and_a_unit_all_of_it(host: SimulatedHost) -> None:
    facts = gather_facts(host, "w2", {})
    tree = KernelSlabFailure(pid=700).locate(host, facts)
    assert [p.pid for p in tree.processes] == [700, 701] and tree.describe() == "process 700 (victim), 2 processes"
    unit = KernelSlabFailure(unit="victim.service").locate(host, facts)
    assert unit.processes == tree.processes


def test_a_function_whose_failure_is_true_answers_that(host: SimulatedHost) -> None:
    facts = gather_facts(host, "w2", {})
    fault = KernelFunctionError(pid=700, function="should_fail_alloc_page", errno="enospc")
    assert fault.errno == "ENOSPC" and fault.locate(host, facts).answer == 1
    assert KernelFunctionError(pid=700, errno="28").locate(host, facts).answer == -28
    with pytest.raises(Refusal, match="does not let") as refused:
        KernelFunctionError(pid=700, function="__x64_sys_fsyncs").locate(host, facts)
    assert "__x64_sys_fsync" in refused.value.allowed


def test_a_kernel_without_the_facilities_says_what_would_help() -> None:
    host = SimulatedHost(fresh_kernel())
    for path in [p for p in host.kernel.texts if p.startswith(f"{DEBUGFS}/fail")]:
        del host.kernel.texts[path]
    lacking = run_probes(host)["kernel.failslab"]
    assert not lacking.available and "no failslab" in lacking.reason and "--kernel lab" in lacking.remedy
    for path in [p for p in host.kernel.texts if p.startswith(DEBUGFS)]:
        del host.kernel.texts[path]
    assert "debugfs is not mounted" in run_probes(host)["kernel.failslab"].reason
