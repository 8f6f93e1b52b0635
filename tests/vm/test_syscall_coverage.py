"""Every entry of the coverage list, both ways, on each kernel, with a program that makes exactly that call.

What is compared is :mod:`ebpf.coverage`, which plans print and docs/syscalls.md is made of. A witness in a control
group of its own makes each call of a family while the fault is in force, and again after it was taken back: what
then works is what the kernel has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ebpf import coverage
from ebpf.coverage import Backend, Release
from labctl.errors import LabctlError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.injection import InjectionView
from tests.lab import KernelNode
from tests.vm.coverage_run import CGROUP, ERRNO, Measured, Order, install, measure, uninstall

pytestmark = pytest.mark.vm

FAMILIES = tuple(coverage.ENTRIES)
HOOKED = tuple(family for family in FAMILIES if coverage.failing(family, "security"))
BY_STRACE = {kernel: FAMILIES[n::3] for n, kernel in enumerate(("debian12", "debian13", "lab"))}
"""What strace does is the same on each kernel, and slow: each measures a third of the families."""


@pytest.fixture(scope="module")
def node(kernel_node: KernelNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelNode]:
    install(kernel_node.node, tmp_path_factory.mktemp("calls"))
    yield kernel_node
    uninstall(kernel_node.node)


@pytest.fixture(scope="module")
def agent(node: KernelNode) -> Iterator[AgentClient]:
    with connect(node.node, node.lab.authority) as transport:
        client = AgentClient(transport)
        yield client
        client.recover(everything=True)


@pytest.fixture(scope="module")
def release(agent: AgentClient) -> Release:
    major, minor = agent.facts().kernel.split(".")[:2]
    return int(major), int(minor)


def test_by_security_hooks(node: KernelNode, agent: AgentClient, release: Release) -> None:
    _compare(node, agent, release, "security", HOOKED)


def test_what_no_hook_sees_is_refused(agent: AgentClient) -> None:
    for family in set(FAMILIES) - set(HOOKED):
        with pytest.raises(LabctlError, match="no security hook of the kernel sees"):
            agent.plan("coverage-none", "syscall_error", _parameters(family, "security"))


def test_by_overriding_the_calls(node: KernelNode, agent: AgentClient, release: Release) -> None:
    if node.kernel != "lab":
        with pytest.raises(LabctlError, match="override"):
            agent.plan("coverage-none", "syscall_error", _parameters("read", "override"))
        return
    _compare(node, agent, release, "override", FAMILIES)


def test_by_strace(node: KernelNode, agent: AgentClient, release: Release) -> None:
    _compare(node, agent, release, "strace", BY_STRACE[node.kernel])


def test_one_call_or_one_kind_of_a_family(node: KernelNode, agent: AgentClient, release: Release) -> None:
    """What narrows a fault narrows what it hits, to what its plan says or to the call that was named."""
    read = coverage.failing("read", "security")
    regular = {entry for entry in read if coverage.KIND.get(entry, "regular") == "regular"}
    expected: tuple[tuple[Order, set[str]], ...] = (
        (_single("read", "pread64"), {"pread64", "pread64_direct"}),
        (_single("create", "mkdirat"), {"mkdirat"}),
        (_single("write", "ftruncate"), {"ftruncate"}),
        (_single("send", "sendmmsg"), {"sendmmsg"}),
        (_file_error("read"), regular),
        (_file_error("create"),
         {"creat", "open_creat", "openat_creat", "io_uring_openat_creat", "mknod_file", "link", "linkat",
          "io_uring_linkat"}),
        (Order("fork", "fork_error", {"cgroup": f"/{CGROUP}", "what": "thread", "errno": ERRNO}),
         {"clone_thread", "pthread_create"}),
        *(((_single("fsync", "fdatasync"), {"fdatasync"}),) if node.kernel == "lab" else ()),
    )  # fmt: skip
    measured = list(measure(node.node, agent, [order for order, _ in expected]))
    found = [(m.order, set(m.failed)) for m in measured]
    assert found == [(order, {e for e in fails if coverage.exists(e, release)}) for order, fails in expected]
    for one in measured[4:7]:
        assert {covers.split()[0] for covers in one.plan.covers} == set(one.failed), one.plan
    assert agent.residue() == ()


def _parameters(operation: str, backend: str) -> dict[str, Any]:
    return {"cgroup": f"/{CGROUP}", "operation": operation, "errno": ERRNO, "backend": backend}


def _single(family: str, call: str) -> Order:
    return Order(family, "syscall_error", _parameters(call, "auto"))


def _file_error(family: str) -> Order:
    parameters = {"cgroup": f"/{CGROUP}", "operation": family, "errno": ERRNO, "kind": "regular"}
    return Order(family, "file_error", parameters)


def _compare(
    node: KernelNode, agent: AgentClient, release: Release, backend: Backend, families: Sequence[str]
) -> None:
    orders = [Order(family, "syscall_error", _parameters(family, backend)) for family in families]
    wrong: list[str] = []
    for one in measure(node.node, agent, orders):
        family = one.order.family
        wrong += [f"{backend} {family}: {why}" for why in _differences(one, backend, release)]
    assert wrong == [], "\n".join(wrong)
    assert agent.residue() == ()


def _differences(one: Measured, backend: Backend, release: Release) -> Iterator[str]:
    """Where what was measured is not what the list says."""
    family = one.order.family
    every = coverage.ENTRIES[family].all
    there = {entry for entry in every if coverage.exists(entry, release)}
    expected = {
        entry: coverage.answer(entry, backend, ERRNO, release)
        for entry in coverage.failing(family, backend, release) if entry in there
    }  # fmt: skip
    for entry in sorted({*every, *one.during}):
        if (entry in there) != (entry in one.there):
            yield f"{entry} {'should work' if entry in there else 'works'} without a fault: {one.after.get(entry)}"
        elif one.failed.get(entry, "ok") != expected.get(entry, "ok"):
            yield f"{entry} answers {one.during[entry]}, not {expected.get(entry, 'ok')}"
    missed = (*one.plan.covers, *one.plan.not_covered[: len(coverage.not_covered(family, backend))])
    if {text.split()[0] for text in missed} != set(every):
        yield f"the plan names other entries: {missed}"
    yield from _what_the_kernel_counted(one.ended, len(one.failed))


def _what_the_kernel_counted(ended: InjectionView, failed: int) -> Iterator[str]:
    evidence = ended.evidence
    if ended.state != "recovered" or ended.residue:
        yield f"it ended {ended.state}, left {ended.residue}"
    if evidence is None:
        yield "no evidence"
    elif evidence.hits < failed or evidence.counters["seen"] < evidence.hits:
        yield f"{failed} entries failed, the kernel counted {dict(evidence.counters)}"
