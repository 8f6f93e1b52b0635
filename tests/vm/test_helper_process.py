"""Helper processes of a real agent under systemd: whose children they are, where they live, and that all end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.content import encode_content
from tests.lab import KernelNode, KernelNodes, thorough
from tests.user import until
from tests.vm.test_bpf_program import compiled

DRIVER = Path(__file__).with_name("crash_driver.py")

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Helped:
    """An agent with a helper, of an injection of its own."""

    agent: AgentClient
    id: str

    @property
    def group(self) -> str:
        """The helper's control group."""
        return f"/sys/fs/cgroup/groundfault-{self.id}-bpf"


@pytest.fixture(scope="module")
def kernel_node(kernel_nodes: KernelNodes) -> Iterator[KernelNode]:
    """One kernel alone: what ends a child with its parent is as old as prctl(2)."""
    found = kernel_nodes("debian13")
    found.lab.reset()
    yield found
    found.lab.reset()


@pytest.fixture
def helped(kernel_node: KernelNode, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Helped]:
    source = encode_content(compiled("deny_open", tmp_path).read_bytes())
    injection = "helper-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]
    with connect(kernel_node.node, kernel_node.lab.authority) as transport:
        client = AgentClient(transport)
        client.apply(injection, "bpf_program", {"source": source}, 300)
        yield Helped(client, injection)
        kernel_node.lab.ready(kernel_node.node)
        client.recover(everything=True)
        assert client.residue() == ()


def gone(node: KernelNode, helped: Helped) -> bool:
    """Neither the control group nor a process with the mark is there."""
    mark = f"GROUNDFAULT_TAG=groundfault-{helped.id}"
    found = node.sh(f"ls -d {helped.group}; grep -lsz {mark} /proc/[0-9]*/environ", check=False)
    return found == ""


def test_it_is_apart_from_the_agent(kernel_node: KernelNode, helped: Helped) -> None:
    pid = kernel_node.sh(f"cat {helped.group}/cgroup.procs")
    main = kernel_node.sh("systemctl show -P MainPID groundfault-agent")
    status = kernel_node.sh(f"ps -o ppid=,sess= -p {pid}").split()
    assert status == [main, pid], "a child of the agent, in a session of its own"
    assert kernel_node.sh(f"cat /proc/{pid}/oom_score_adj; cat /proc/{main}/oom_score_adj").split() == [
        "0",
        "-900",
    ]
    procs = "/sys/fs/cgroup/system.slice/groundfault-agent.service/cgroup.procs"
    assert pid not in kernel_node.sh(f"cat {procs}").split()


def test_it_outlives_the_request_that_started_it(kernel_node: KernelNode, helped: Helped) -> None:
    for _ in range(40):  # more requests than the agent has threads
        helped.agent.list()
    with connect(kernel_node.node, kernel_node.lab.authority) as transport:
        (view,) = AgentClient(transport).list(ids=(helped.id,)).injections
    assert view.evidence is not None and view.evidence.armed


@pytest.mark.parametrize("signal", ["KILL", *thorough("SEGV", "ABRT")])
def test_it_ends_with_the_agent(kernel_node: KernelNode, helped: Helped, signal: str) -> None:
    took = kernel_node.sh(
        f"main=$(systemctl show -P MainPID groundfault-agent); helper=$(cat {helped.group}/cgroup.procs);"
        f"kill -{signal} $main; began=$(date +%s%N);"
        "while [ -e /proc/$helper ]; do :; done; echo $((($(date +%s%N) - began) / 1000000))"
    )
    assert int(took) < 1000, f"it lived for {took} ms"
    until("the next agent has removed its control group", lambda: gone(kernel_node, helped), 60)


def test_what_it_left_in_its_control_group_ends_too(kernel_node: KernelNode, helped: Helped) -> None:
    """A process that got away from its parent and from its session, but not from its control group."""
    kernel_node.sh(
        f"setsid sh -c 'echo 0 > {helped.group}/cgroup.procs; exec setsid sleep 1000' >/dev/null 2>&1 &"
    )
    until("it is there", lambda: len(kernel_node.sh(f"cat {helped.group}/cgroup.procs").split()) == 2)
    stray = kernel_node.sh("pgrep -x sleep").split()
    (ended,) = helped.agent.recover((helped.id,)).injections
    assert ended.state == "recovered" and gone(kernel_node, helped)
    assert kernel_node.sh(f"ls -d /proc/{stray[-1]}", check=False) == ""


@pytest.mark.thorough
def test_stopping_the_agent_in_good_order(kernel_node: KernelNode, helped: Helped) -> None:
    kernel_node.sh("systemctl stop groundfault-agent")
    assert gone(kernel_node, helped)
    kernel_node.sh("systemctl start groundfault-agent")


@pytest.mark.thorough
def test_an_agent_that_hangs_and_is_ended_by_systemd(kernel_node: KernelNode, helped: Helped) -> None:
    """The kernel sees to it: systemd kills the agent's own control group only, and the helper has another."""
    kernel_node.sh("systemctl kill --kill-whom=main --signal=STOP groundfault-agent")
    kernel_node.sh("systemctl kill --kill-whom=main --signal=KILL groundfault-agent")
    until("the next agent has removed its control group", lambda: gone(kernel_node, helped), 60)


@pytest.mark.thorough
def test_killed_after_every_journal_record(kernel_node: KernelNode, tmp_path: Path) -> None:
    parameters = json.dumps({"source": encode_content(compiled("deny_open", tmp_path).read_bytes())})
    count = "bpftool -j link list | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))'"
    before = kernel_node.sh(count)
    kernel_node.sh("systemctl stop groundfault-agent")
    kernel_node.sh(f"cat > /tmp/driver.py <<'END'\n{DRIVER.read_text()}\nEND")
    out = kernel_node.sh(f"python3 /tmp/driver.py '{parameters}' bpf_program 2>&1")
    *killed, whole = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert whole.get("whole_life") == 0, out[-2000:]
    assert len(killed) == whole["records"] + 1 >= 7, "a life has a record for every step, there and back"
    assert [x for x in killed if x["state"] != "recovered" or x["residue"]] == []
    marked = kernel_node.sh(
        "ls -d /sys/fs/cgroup/groundfault-*; grep -lsz GROUNDFAULT_TAG= /proc/[0-9]*/environ", False
    )
    assert marked == "" and kernel_node.sh(count) == before
    kernel_node.sh("systemctl start groundfault-agent")
    kernel_node.lab.ready(kernel_node.node)
