"""A researcher's own programs, compiled, on real kernels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import LabctlError, UnsupportedError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.content import encode_content
from tests.lab import KernelNode
from tests.user import until

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1500)]

PROGRAMS = Path(__file__).with_name("programs")


def compiled(name: str, place: Path) -> Path:
    """An object of the tests' own, for any kernel."""
    target = place / f"{name}.bpf.o"
    multiarch = subprocess.run(("gcc", "-print-multiarch"), capture_output=True, text=True).stdout.strip()
    subprocess.run(
        ("clang", "-target", "bpf", "-g", "-O2", "-Wall", "-Werror", f"-I/usr/include/{multiarch}", "-c",
         str(PROGRAMS / f"{name}.bpf.c"), "-o", str(target)),
        check=True,
    )  # fmt: skip
    return target


@pytest.fixture
def victim(kernel_node: KernelNode) -> Iterator[int]:
    """A shell that opens a file whenever it is told to. It has opened all it needs for that before."""
    kernel_node.sh(
        "rm -f /run/turn /run/answer; mkfifo /run/turn /run/answer;"
        "setsid sh -c 'exec 3<>/run/turn 4<>/run/answer;"
        " while read -r turn <&3; do { true < /etc/hostname; } 2>/dev/null && echo well || echo denied;"
        " done >&4' > /dev/null 2>&1 < /dev/null & echo $! > /run/victim.pid"
    )
    pid = int(kernel_node.sh("cat /run/victim.pid"))
    yield pid
    kernel_node.sh(f"kill {pid}; rm -f /run/turn /run/answer", check=False)


def turn(node: KernelNode) -> str:
    """What the victim gets from opening a file now."""
    return node.sh("echo go > /run/turn; read -r answer < /run/answer; echo $answer")


@pytest.fixture
def agent(kernel_node: KernelNode) -> Iterator[AgentClient]:
    with connect(kernel_node.node, kernel_node.lab.authority) as transport:
        client = AgentClient(transport)
        yield client
        client.recover(everything=True)
        assert client.residue() == ()


def links(node: KernelNode) -> list[str]:
    found = json.loads(node.sh("bpftool -j link list") or "[]")
    return sorted(str(link["id"]) for link in found)


def test_an_object_fails_what_it_is_told_to(
    kernel_node: KernelNode, agent: AgentClient, victim: int, tmp_path: Path
) -> None:
    source = encode_content(compiled("deny_open", tmp_path).read_bytes())
    before = links(kernel_node)
    assert turn(kernel_node) == "well"
    view = agent.apply("own-1", "bpf_program", {"source": source, "pid": victim}, 300)
    assert view.state == "active" and view.backend == "libbpf" and view.evidence and view.evidence.hits == 0
    assert len(links(kernel_node)) == len(before) + 1, "the kernel has its link"
    assert [turn(kernel_node) for _ in range(3)] == ["denied"] * 3
    assert kernel_node.sh("cat /etc/hostname"), "nobody else is hit"
    (view,) = agent.list(ids=("own-1",)).injections
    assert view.evidence is not None and view.evidence.armed
    assert view.evidence.hits == 3 and view.evidence.counters["seen"] > 3
    assert len(view.parameters["source"]) < 200, "lists do not carry programs"
    (ended,) = agent.recover(("own-1",)).injections
    assert ended.state == "recovered" and ended.residue == () and ended.evidence and ended.evidence.hits >= 3
    assert turn(kernel_node) == "well" and links(kernel_node) == before


@pytest.mark.thorough
def test_an_agent_that_is_killed_takes_the_program_with_it(
    kernel_node: KernelNode, agent: AgentClient, victim: int, tmp_path: Path
) -> None:
    source = encode_content(compiled("deny_open", tmp_path).read_bytes())
    before = links(kernel_node)
    agent.apply("own-2", "bpf_program", {"source": source, "pid": victim}, 300)
    assert turn(kernel_node) == "denied"
    took = kernel_node.sh(
        "main=$(systemctl show -P MainPID groundfault-agent); helper=$(cat /sys/fs/cgroup/*own-2*/cgroup.procs);"
        "kill -KILL $main; began=$(date +%s%N);"
        "while [ -e /proc/$helper ]; do :; done; echo $((($(date +%s%N) - began) / 1000000))"
    )
    assert int(took) < 1000, f"the helper lived for {took} ms"
    assert turn(kernel_node) == "well" and links(kernel_node) == before, "before the agent has come back"
    kernel_node.lab.ready(kernel_node.node)
    until("the agent has closed it", lambda: not _groups(kernel_node), 60)


def _groups(node: KernelNode) -> str:
    return node.sh("ls -d /sys/fs/cgroup/groundfault-* 2>/dev/null", check=False)


def test_a_program_that_ends_by_itself_is_no_longer_armed(
    kernel_node: KernelNode, agent: AgentClient, victim: int, tmp_path: Path
) -> None:
    source = encode_content(compiled("deny_open", tmp_path).read_bytes())
    agent.apply("own-3", "bpf_program", {"source": source, "pid": victim}, 300)
    kernel_node.sh("kill -KILL $(cat /sys/fs/cgroup/*own-3*/cgroup.procs)")
    (view,) = agent.list(ids=("own-3",)).injections
    assert view.evidence is not None and not view.evidence.armed and "has ended" in view.evidence.notes[0]
    assert turn(kernel_node) == "well"


def test_the_verifier_refuses(kernel_node: KernelNode, agent: AgentClient, tmp_path: Path) -> None:
    source = encode_content(compiled("refused", tmp_path).read_bytes())
    with pytest.raises(LabctlError) as refused:
        agent.apply("own-4", "bpf_program", {"source": source}, 300)
    text = refused.value.message
    assert kernel_node.sh("uname -r") in text and "R0 invalid mem access 'map_value_or_null'" in text
    assert _groups(kernel_node) == ""


def test_without_bcc_a_source_is_refused_with_the_remedy(kernel_node: KernelNode, agent: AgentClient) -> None:
    plan = agent.plan("own-5", "bpf_program", {"source": (PROGRAMS / "deny_open.c").read_text()})
    (missing,) = plan.missing
    assert missing.capability == "bpf.bcc" and "python3-bpfcc" in missing.remedy
    with pytest.raises(UnsupportedError):
        agent.apply("own-5", "bpf_program", {"source": (PROGRAMS / "deny_open.c").read_text()}, 300)
