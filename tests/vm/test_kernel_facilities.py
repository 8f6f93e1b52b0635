"""The kernel's own fault facilities on the lab kernel, measured by a program that knows nothing of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import UsageError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.fault import Evidence
from node_agent.injection import InjectionView
from tests.lab import KernelNode, KernelNodes
from tests.user import until

pytestmark = [pytest.mark.vm, pytest.mark.other_kernels]

NUMBERS = itertools.count(1)
PROGRAM = Path(__file__).with_name("facility_victim.py")
DEBUGFS = "/sys/kernel/debug"
FLAGS = "cat /proc/[0-9]*/task/*/make-it-fail 2>/dev/null | sort -u"
DIALS = f"cd {DEBUGFS} && grep -s . fail*/* | grep -v /injectable | sort; cat /sys/block/*/make-it-fail"
READ = "dd if=/dev/mapper/data iflag=direct bs=4096 count=1 status=none of=/dev/null"


@dataclass
class Bench:
    """The node with the lab kernel, and two that run the same program there: a victim and a bystander."""

    on: KernelNode
    agent: AgentClient
    pids: dict[str, int] = field(default_factory=dict)

    def start(self, unit: str) -> None:
        self.on.sh(
            f"mkdir -p /run/{unit}; systemd-run --quiet --unit={unit} python3 /tmp/{PROGRAM.name} /run/{unit}"
        )
        self.on.sh(f"for i in $(seq 600); do grep -qs '^0 ' /run/{unit}/answer && exit 0; sleep 0.1; done; exit 1")
        self.pids[unit] = int(self.on.sh(f"systemctl show -P MainPID {unit}"))

    def ask(self, unit: str, call: str, count: int, who: str = "self") -> dict[str, int]:
        """What the program's calls were answered: how often each answer came."""
        number = next(NUMBERS)
        line = f"{number} {call} {count} {who}\\n\\0"
        said = self.on.sh(
            f"printf '{line}' | dd of=/run/{unit}/ask conv=notrunc status=none; for i in $(seq 300); do "
            f"grep -as '^{number} ' /run/{unit}/answer && exit 0; sleep 0.1; done; exit 1"
        )
        words = (word.partition("=") for word in said.split("\0")[0].split()[1:])
        return {name: int(value) for name, _, value in words}

    def inject(self, fault: str, **parameters: Any) -> InjectionView:
        view = self.agent.apply(f"facility-{next(NUMBERS)}", fault, parameters, 600)
        assert view.state == "active" and view.evidence is not None and view.evidence.armed, view
        return view

    def evidence(self, view: InjectionView) -> Evidence:
        (now,) = self.agent.list(ids=(view.id,)).injections
        assert now.evidence is not None
        return now.evidence

    def recover(self, view: InjectionView) -> None:
        (ended,) = self.agent.recover((view.id,)).injections
        assert (ended.state, ended.residue) == ("recovered", ())


@pytest.fixture(scope="module")
def bench(kernel_nodes: KernelNodes) -> Iterator[Bench]:
    on = kernel_nodes("lab")
    on.lab.reset()
    with connect(on.node, on.lab.authority) as transport:
        one = Bench(on, AgentClient(transport))
        on.sh(f"cat > /tmp/{PROGRAM.name} <<'END'\n{PROGRAM.read_text()}\nEND")
        for unit in ("victim", "bystander"):
            one.start(unit)
        yield one
    on.lab.reset()


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    """Each test ends with every dial and every flag as it was."""
    before = bench.on.sh(DIALS)
    yield
    bench.agent.recover(everything=True)
    assert bench.agent.residue() == ()
    assert bench.on.sh(DIALS) == before
    assert bench.on.sh(FLAGS) == "0"
    assert bench.on.sh("ls /run/groundfault | grep groundfault- || echo none") == "none"


def test_slab_allocations_of_one_process_fail(bench: Bench) -> None:
    view = bench.inject("kernel_slab_failure", pid=bench.pids["victim"], probability_percent=100, times=7)
    assert bench.ask("bystander", "eventfd", 50) == {"well": 50}
    assert bench.ask("victim", "eventfd", 50) == {"ENOMEM": 7, "well": 43}
    now = bench.evidence(view)
    assert now.hits == 7 and now.counters["failures_left"] == 0
    assert any("name failslab," in line for line in now.log), now.log
    assert "FAULT_INJECTION: forcing a failure" in bench.on.sh("dmesg | tail -50")
    bench.recover(view)
    assert bench.ask("victim", "eventfd", 50) == {"well": 50}


def test_pages_of_a_unit_cannot_be_had(bench: Bench) -> None:
    view = bench.inject("kernel_page_alloc_failure", unit="victim", probability_percent=100, times=3)
    assert bench.ask("bystander", "pipe", 10) == {"well": 10}
    answers = bench.ask("victim", "pipe", 10)
    assert 1 <= answers.get("ENOMEM", 0) + answers.get("short", 0) <= 3, answers
    assert bench.evidence(view).hits == 3
    bench.recover(view)
    assert bench.ask("victim", "pipe", 10) == {"well": 10}


def test_futex_calls_fail_and_private_ones_are_spared(bench: Bench) -> None:
    view = bench.inject("kernel_futex_error", unit="victim", probability_percent=100, shared_only=True)
    assert bench.ask("bystander", "futex", 20) == {"well": 20}
    assert bench.ask("victim", "futex", 20) == {"EFAULT": 20}
    assert bench.ask("victim", "private-futex", 20) == {"well": 20}
    assert bench.evidence(view).hits == 20
    bench.recover(view)
    assert bench.ask("victim", "futex", 20) == {"well": 20}


def test_a_function_answers_an_error_to_a_process_and_its_children(bench: Bench) -> None:
    victim = bench.pids["victim"]
    view = bench.inject(
        "kernel_function_error", pid=victim, function="__x64_sys_fsync", errno="ENOSPC", interval=3
    )
    assert bench.ask("bystander", "fsync", 30) == {"well": 30}
    bench.on.sh("sync /run/victim/file")
    assert bench.ask("victim", "fsync", 30) == {"ENOSPC": 10, "well": 20}
    assert bench.ask("victim", "fsync", 30, who="child") == {"ENOSPC": 10, "well": 20}
    assert bench.evidence(view).hits == 20
    bench.recover(view)
    assert bench.ask("victim", "fsync", 30) == {"well": 30}
    assert bench.ask("victim", "fsync", 30, who="child") == {"well": 30}


def test_a_function_that_may_not_fail_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match="does not let"):
        bench.inject("kernel_function_error", unit="victim", function="schedule")


def test_requests_to_a_disk_fail(bench: Bench) -> None:
    bench.on.sh("sync -f /srv/data")  # from here on the file system has no requests of its own, which would count
    view = bench.inject("kernel_block_request_failure", disk="data", probability_percent=100, interval=2)
    said = bench.on.sh(f"for i in $(seq 20); do {READ} 2>/dev/null && echo well || echo failed; done")
    assert sorted(said.split()) == ["failed"] * 10 + ["well"] * 10
    message = bench.on.sh(f"{READ} 2>&1; {READ} 2>&1", check=False)
    assert "Input/output error" in message
    assert bench.evidence(view).hits == 11
    root = bench.on.sh("dd if=/dev/vda iflag=direct bs=4096 count=20 status=none of=/dev/null && echo well")
    assert root == "well", "other disks are spared"
    bench.recover(view)
    assert bench.on.sh(f"for i in $(seq 20); do {READ} || exit 1; done; echo well") == "well"
    bench.on.sh("touch /srv/data/well && sync -f /srv/data")


def test_protected_processes_and_everybody_are_refused(bench: Bench) -> None:
    agent = bench.on.sh("systemctl show -P MainPID groundfault-agent")
    sshd = bench.on.sh("pgrep -o sshd")
    kernel_thread = bench.on.sh("pgrep -o kswapd")
    for parameters, why in (
        ({"pid": 1}, "is pid 1"),
        ({"pid": int(agent)}, "is the agent"),
        ({"pid": int(sshd)}, "is sshd"),
        ({"pid": int(kernel_thread)}, "is a kernel thread"),
        ({"unit": "ssh"}, "is sshd"),
        ({"unit": "groundfault-agent"}, "is the agent"),
        ({"unit": "no-such-unit"}, "does not run"),
        ({"pid": 4194303}, "no process"),
        ({}, "give one of them"),
    ):
        with pytest.raises(UsageError, match=why):
            bench.inject("kernel_slab_failure", **parameters)


def test_one_flag_one_owner(bench: Bench) -> None:
    """The kernel has one flag for all facilities: two injections would hit each other's victims."""
    first = bench.inject("kernel_futex_error", unit="victim", times=1)
    with pytest.raises(Exception, match=first.id):
        bench.inject("kernel_slab_failure", unit="bystander")
    bench.recover(first)
    bench.on.sh(f"echo 1 > /proc/{bench.pids['bystander']}/make-it-fail")
    with pytest.raises(Exception, match="somebody else has marked"):
        bench.inject("kernel_slab_failure", unit="victim")
    bench.on.sh(f"echo 0 > /proc/{bench.pids['bystander']}/make-it-fail")
    dial = f"{DEBUGFS}/fail_function/probability"  # which without a function in its list hurts nobody
    bench.on.sh(f"echo 5 > {dial}")
    with pytest.raises(Exception, match="somebody else uses it"):
        bench.inject("kernel_function_error", unit="victim")
    assert bench.on.sh(f"cat {dial}") == "5", "what is foreign stays"
    bench.on.sh(f"echo 0 > {dial}")
    bench.recover(bench.inject("kernel_function_error", unit="victim"))


def test_the_fault_goes_when_the_agent_is_killed(bench: Bench) -> None:
    bench.inject("kernel_function_error", unit="victim")
    assert bench.ask("victim", "fsync", 5) == {"EIO": 5}
    bench.on.sh("systemctl kill --signal=KILL groundfault-agent")
    until(
        "the agent's next life takes the fault back",
        lambda: bench.on.sh(f"cat {DEBUGFS}/fail_function/probability; {FLAGS}").split() == ["0", "0"],
    )
    assert bench.ask("victim", "fsync", 5) == {"well": 5}
    bench.on.lab.ready(bench.on.node)
    until("the agent's probes are over", lambda: not bench.agent.residue())
