"""The cluster, the lab of its nodes, and what was on this machine before and must not be more afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from labctl.progress import PlainProgress
from tests.kubernetes.bed.built import Built, ensure_built
from tests.kubernetes.bed.cluster import RUN, Bed, cluster
from tests.kubernetes.bed.lab import Lab, lab_of
from tests.kubernetes.bed.world import CGROUPS, wait_for

PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller",
    "kube-scheduler",
    "kubelet",
    "containerd",
    "containerd-shim",
)

OURS = ("gfk", "cni0", "172.30.77.", "10.244.", "kubelet", "containerd", "groundfault-kube")
"""What a link, a route or a mount of the cluster has in its line; others may come and go meanwhile."""


@pytest.fixture(scope="session")
def built() -> Built:
    """The programs, built where they are not cached."""
    return ensure_built(PlainProgress())


def traces() -> dict[str, set[str]]:
    """What a cluster could leave on this machine, by kind."""
    links = subprocess.run(("ip", "-o", "link"), capture_output=True, text=True, check=True, timeout=30).stdout
    rules = subprocess.run(("ip", "route"), capture_output=True, text=True, check=True, timeout=30).stdout
    groups = [d for root in CGROUPS.iterdir() for d in root.glob("*") if d.is_dir()]
    settings = ("net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic")
    return {
        "links": _ours(line.split(":")[1].strip() for line in links.splitlines()),
        "routes": _ours(rules.splitlines()),
        "mounts": _ours(Path("/proc/self/mounts").read_text().splitlines()),
        "control groups": {str(d) for d in groups if d.name.startswith(("gfk", "groundfault", "kube"))},
        "memory": _ours(str(path) for path in Path("/dev/shm").iterdir()),
        "settings": {f"{name} {Path('/proc/sys', name).read_text().strip()}" for name in settings},
        "directories": {
            d for d in ("/var/lib/kubelet", "/etc/cni", "/opt/cni", "/run/containerd") if Path(d).exists()
        },
        "namespaces": _ours(str(path) for path in Path("/run/netns").glob("*")),
        "processes": {f"{pid} {name}" for pid, name in _processes() if name in PROGRAMS},
    }


def _ours(lines: Iterable[str]) -> set[str]:
    return {line for line in lines if any(word in line for word in OURS)}


def _processes() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                yield int(path.name), (path / "comm").read_text().strip()
            except OSError:
                continue


def assert_no_traces(before: dict[str, set[str]]) -> None:
    """Nothing is there that was not. The kernel takes a namespace and its links apart in its own time."""
    wait_for("no link of a node", lambda: traces()["links"] <= before["links"], 30)
    now = traces()
    left = {kind: now[kind] - had for kind, had in before.items() if now[kind] - had}
    assert not left and not RUN.exists(), left


@pytest.fixture(scope="module")
def bed(built: Built) -> Iterator[Bed]:
    """Three nodes; afterwards there is no trace of them."""
    before = traces()
    with cluster(built, 3) as up:
        yield up
    assert_no_traces(before)


@pytest.fixture(scope="module")
def lab(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The nodes as nodes of a lab."""
    with lab_of(bed, tmp_path_factory.mktemp("kube")) as found:
        yield found
