"""cpu_offline on a real kernel, in the lab with two processors a node: the nodes of the others have one CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labctl.errors import LabctlError
from tests.lab import LabUnderTest
from tests.vm.disks import Bench, disk_bench
from tests.vm.services import COUNTS, beats, services, show

pytestmark = pytest.mark.vm

ONLINE = "cat /sys/devices/system/cpu/online"
AFFINITIES = "grep -H . /proc/irq/*/smp_affinity_list"


@pytest.fixture(scope="module")
def bench(two_cpus: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(two_cpus, "w1") as one:
        yield one


def refused(bench: Bench, cpus: str) -> str:
    """What is said when it is not planted."""
    with pytest.raises(LabctlError) as refusal:
        bench.agent.apply(f"refused-{cpus}", "cpu_offline", {"cpus": cpus}, 60)
    return str(refusal.value)


def test_a_processor_is_taken_out_of_use(bench: Bench) -> None:
    with services(bench, pinned=("CPUAffinity=1", COUNTS), neighbour=("Restart=always", COUNTS)):
        pinned = f"taskset -cp {show(bench, 'pinned', 'MainPID')[0]} | sed 's/.*: //'"
        one = "for f in /proc/irq/*/smp_affinity_list; do echo 1 2>/dev/null > $f && echo $f && break; done"
        moved = bench.sh(one)
        bound = bench.sh(AFFINITIES)
        assert bench.sh(pinned) == "1" and bench.sh(ONLINE) == "0-1"

        view = bench.inject("cpu_offline")
        assert bench.sh(f"{ONLINE}; nproc").split() == ["0", "1"]
        assert min(beats(bench, "pinned", "neighbour")) > 5, "what was bound to it goes on elsewhere"
        assert bench.sh(f"cat {moved}") != "1" and bench.sh(pinned) != "1", "the kernel has moved them"
        found = bench.evidence(view)
        assert found.hits == 1 and any("is now offline" in line for line in found.log)
        assert bench.seen(view) == [True]
        assert "CPU 0 is never taken" in refused(bench, "0")
        assert "CPU 2 is not on this node" in refused(bench, "1-2")
        assert "held by injection" in refused(bench, "1")

        bench.recover(view)
        assert bench.sh(ONLINE) == "0-1" and bench.agent.residue() == ()
        assert bench.sh(pinned) == "1" and bench.sh(AFFINITIES) == bound
        assert min(beats(bench, "pinned", "neighbour")) > 5


def test_one_that_somebody_brings_back(bench: Bench) -> None:
    view = bench.inject("cpu_offline", cpus="1")
    bench.sh("echo 1 > /sys/devices/system/cpu/cpu1/online")
    found = bench.evidence(view)
    assert not found.armed and "somebody has brought it back" in " ".join(found.notes)
    bench.recover(view)
    assert bench.agent.residue() == ()
    bench.sh("echo 0 > /sys/devices/system/cpu/cpu1/online")
    with pytest.raises(LabctlError, match="CPU 1 is offline already"):
        bench.inject("cpu_offline")
    bench.sh("echo 1 > /sys/devices/system/cpu/cpu1/online")
