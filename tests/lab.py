"""A lab of real nodes for tests, booted once a session with state of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from labctl.lab import store
from labctl.lab.files import locked
from labctl.lab.model import KernelName, LabOptions, Node, Ready
from labctl.lab.qemu import QemuLab
from labctl.lab.state import read_record, run_dir, write_record
from labctl.lab.store import lab_dir
from labctl.pki import LabAuthority
from labctl.progress import PlainProgress
from labctl.transport.ready import make_ready

READY_S = 420.0
BOOT_S = 900.0


def ssh_argv(node: Node, *argv: str) -> list[str]:
    """The command that runs a program on a node as root, with the lab's key and the node's known host key."""
    options = {"UserKnownHostsFile": node.known_hosts, "StrictHostKeyChecking": "yes", "BatchMode": "yes",
               "ConnectTimeout": "30"}  # fmt: skip
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    login = ("-i", str(node.ssh_key), "-p", str(node.ssh_port), f"{node.ssh_user}@{node.address}")
    return ["ssh", "-F", "/dev/null", *words, *login, "--", *argv]


def ssh(node: Node, *argv: str, check: bool = True, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a program on a node as root and wait for it. The shell there splits words."""
    done = subprocess.run(ssh_argv(node, *argv), capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise AssertionError(
            f"{node.name}: {' '.join(argv)} ended with {done.returncode}: {done.stderr}{done.stdout}"
        )
    return done


@dataclass(frozen=True)
class LabUnderTest:
    """A lab that is up. Tests that change a node beyond an injection call `reset` first or last."""

    provider: QemuLab
    ready: Ready
    authority: LabAuthority

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.provider.nodes()

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def reset(self) -> None:
        """Memory and disks of all nodes as they were when the lab was made."""
        self.provider.reset(self.ready, PlainProgress())


@contextmanager
def state_home(path: Path) -> Iterator[None]:
    """XDG_STATE_HOME for a while: where labs are made and looked for. The cache stays the user's."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before


@contextmanager
def lab_up(name: str, options: LabOptions) -> Iterator[LabUnderTest]:
    """A lab that is brought up, and destroyed at the end."""
    provider = store.create_lab(name, "qemu")
    assert isinstance(provider, QemuLab)
    authority = LabAuthority.ensure(lab_dir(name) / "pki", name)
    ready = make_ready(authority, READY_S)
    try:
        provider.up(options, ready, PlainProgress())
        yield LabUnderTest(provider, ready, authority)
    finally:
        provider.destroy(PlainProgress())


@pytest.fixture(scope="session")
def labs_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_STATE_HOME of the whole session: one for all its labs, so that `labctl` finds each by its name."""
    home = tmp_path_factory.mktemp("state")
    with state_home(home):
        yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def lab(labs_home: Path) -> Iterator[LabUnderTest]:
    """Three nodes with agents."""
    if booted := os.environ.get("GROUNDFAULT_TEST_LABS"):
        boot_once("vmtests", LabOptions(), Path(booted))
    with lab_up("vmtests", LabOptions()) as up:
        yield up


def boot_once(name: str, options: LabOptions, booted: Path) -> None:
    """A lab that is down and has its golden snapshot: a copy of what is in `booted`, where the first one who asks
    puts it. To boot three emulated nodes takes minutes, and sessions of tests side by side want the same ones.
    """
    directory, kept = lab_dir(name), booted / name
    with locked(booted / f"{name}.lock", name, BOOT_S, lambda text: None):
        if not kept.exists():
            authority = LabAuthority.ensure(directory / "pki", name)
            provider = store.create_lab(name, "qemu")
            provider.up(options, make_ready(authority, READY_S), PlainProgress())
            provider.down(PlainProgress())
            shutil.copytree(directory, booted / f"{name}.new")
            (booted / f"{name}.new").rename(kept)
            return
    shutil.copytree(kept, directory)
    for disk in directory.glob("nodes/*/root.qcow2"):
        argv = ("qemu-img", "rebase", "-u", "-F", "qcow2", "-b", str(directory / "base.qcow2"), str(disk))
        subprocess.run(argv, check=True)
    record = read_record(directory / "lab.json")
    assert record is not None
    write_record(directory / "lab.json", record.model_copy(update={"run_dir": run_dir(directory, name)}))


@pytest.fixture(scope="session")
def two_cpus(labs_home: Path) -> Iterator[LabUnderTest]:
    """Two nodes with two processors each, containers and PostgreSQL 17."""
    # While it boots, an emulated machine whose host is busy may miss so many ticks that the kernel panics over its
    # timer (arch/x86/kernel/apic/io_apic.c, check_timer).
    options = LabOptions(nodes=2, cpus=2, memory_mib=1024, packages=("podman", "postgresql"),
                         kernel_arguments=("no_timer_check",))  # fmt: skip
    with lab_up("calls", options) as up:
        yield up


@dataclass(frozen=True)
class KernelNode:
    """A node with a certain kernel: the last of its lab, which other tests may use, too."""

    kernel: KernelName
    lab: LabUnderTest

    @property
    def node(self) -> Node:
        return self.lab.nodes[-1]

    def sh(self, script: str, check: bool = True) -> str:
        """Standard output of a script on the node."""
        return ssh(self.node, script, check=check).stdout.strip()


KernelNodes = Callable[[KernelName], KernelNode]


@pytest.fixture(scope="session")
def kernel_nodes(request: pytest.FixtureRequest, labs_home: Path) -> Iterator[KernelNodes]:
    """A node with each kernel: a function that brings up what it is first asked for; all end with the session.

    `debian13` is a node of the fixture `lab`; each other kernel has a lab of one node.
    """
    known: dict[KernelName, KernelNode] = {}
    with ExitStack() as stack:

        def node_with(kernel: KernelName) -> KernelNode:
            if kernel not in known and kernel == "debian13":
                known[kernel] = KernelNode(kernel, request.getfixturevalue("lab"))
            elif kernel not in known:
                up = stack.enter_context(lab_up(f"tests-{kernel}", LabOptions(nodes=1, kernel=kernel)))
                known[kernel] = KernelNode(kernel, up)
            return known[kernel]

        yield node_with


def thorough(*values: Any) -> list[Any]:
    """Parameters that prove again what others prove; `make test` leaves them out."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def kernels(*names: KernelName) -> list[Any]:
    """Parameters of a fixture; those that are not what nodes boot by default are marked `other_kernels`."""
    marks = {name: () if name == LabOptions().kernel else (pytest.mark.other_kernels,) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.fixture(scope="module", params=kernels(*get_args(KernelName)))
def kernel_node(request: pytest.FixtureRequest, kernel_nodes: KernelNodes) -> Iterator[KernelNode]:
    """Each kernel in turn, as its lab was made; what a module did to the node is taken back afterwards."""
    found = kernel_nodes(request.param)
    found.lab.reset()
    yield found
    found.lab.reset()
