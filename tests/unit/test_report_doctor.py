"""The matrix of the doctor: what serves what, and why things are missing."""

from __future__ import annotations

import io

from rich.console import Console

from labctl.report.doctor import matrix, reasons, section_of
from node_agent.api.views import FaultSupport, ProbeReport
from node_agent.fault import Capability, Missing


def report(lacks: dict[str, tuple[str, str]], *has: str, faults: tuple[FaultSupport, ...] = ()) -> ProbeReport:
    return ProbeReport(
        capabilities=(
            *(Capability(name=n, available=False, reason=why, remedy=help) for n, (why, help) in lacks.items()),
            *(Capability(name=n, available=True) for n in has),
        ),
        faults=faults,
    )


NO_LSM = ("the bpf LSM is not active", "boot with lsm=…,bpf")
CAN = FaultSupport(fault="file_error", available=True)
REPORTS = {
    "w1": report({}, "bpf.lsm", "bpf.lsm_cgroup", "dm.error", "strace", "hwpoison", faults=(CAN,)),
    "w2": report(
        {"bpf.lsm": NO_LSM, "bpf.lsm_cgroup": NO_LSM, "dm.error": ("no dm_mod", ""), "hwpoison": ("", "")},
        "strace",
        faults=(FaultSupport(fault="file_error", available=False),),
    ),
}


def lines(reports: dict[str, ProbeReport]) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(matrix(reports))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_backends_stand_together_under_what_they_serve() -> None:
    assert lines(REPORTS) == [
        "CAN w1 w2",
        "FAULTS",
        "inject file_error yes no",
        "",
        "BACKENDS OF SYSTEM CALLS",
        "bpf.lsm yes no",
        "bpf.lsm_cgroup yes no",
        "strace yes yes",
        "",
        "BACKENDS OF DISKS",
        "dm.error yes no",
        "",
        "OTHER ABILITIES",
        "hwpoison yes no",
    ]
    assert [section_of(n) for n in ("bpf.kprobe_override", "kernel.failslab", "bpfilter")] == [
        "backends of system calls", "the kernel's own facilities", "other abilities",
    ]  # fmt: skip


def test_one_reason_is_told_once_for_all_that_lack_by_it() -> None:
    assert reasons(REPORTS) == [
        "bpf.lsm, bpf.lsm_cgroup (w2): the bpf LSM is not active; remedy: boot with lsm=…,bpf",
        "dm.error (w2): no dm_mod",
        "hwpoison (w2): no reason given",
    ]
    both = {"w1": report({"bpf.lsm": NO_LSM}), "w2": report({"bpf.lsm": ("lockdown", "")})}
    assert reasons(both) == [
        "bpf.lsm (w1): the bpf LSM is not active; remedy: boot with lsm=…,bpf",
        "bpf.lsm (w2): lockdown",
    ]


def test_a_fault_that_lacks_what_is_no_capability_is_explained_too() -> None:
    lack = Missing(capability="an example", reason="none of its examples is valid", remedy="")
    known = Missing(capability="bpf.lsm", reason="the bpf LSM is not active", remedy="boot with lsm=…,bpf")
    one = report({"bpf.lsm": NO_LSM}, faults=(FaultSupport(fault="f", available=False, missing=(lack, known)),))
    assert reasons({"w1": one}) == [
        "bpf.lsm (w1): the bpf LSM is not active; remedy: boot with lsm=…,bpf",
        "inject f (w1): an example: none of its examples is valid",
    ]
