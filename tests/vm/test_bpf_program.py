"""A researcher's own programs on real kernels: compiled objects on all of them, BCC on nodes that have it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabctlError, UnsupportedError
from labctl.lab.model import LabOptions
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.content import encode_content
from tests.lab import KernelNode, LabUnderTest, lab_up, ssh, state_home
from tests.user import labctl, until

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1500)]

PROGRAMS = Path(__file__).with_name("programs")
BCC_PACKAGES = ("python3-bpfcc", "linux-headers-cloud-amd64")
LAB = "bcc"


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


# -- BCC, as a user types it -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    """A node with BCC and kernel headers. XDG_STATE_HOME is its own as long as it is up."""
    home = tmp_path_factory.mktemp("state-bcc")
    with state_home(home), lab_up(LAB, LabOptions(nodes=1, memory_mib=1024, packages=BCC_PACKAGES)) as up:
        yield up
    shutil.rmtree(home, ignore_errors=True)


def sh(lab: LabUnderTest, script: str, check: bool = True) -> str:
    return ssh(lab.nodes[0], script, check=check).stdout.strip()


def inject(source: Path, *options: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    return labctl("--lab", LAB, "inject", "bpf_program", "--node", "w1", "--source", str(source), *options,
                  status=status)  # fmt: skip


def evidence(injection: str) -> Any:
    found = json.loads(labctl("--lab", LAB, "injections", "--json").stdout)["injections"]
    return next(one["evidence"] for one in found if one["id"] == injection)


def recovered() -> None:
    labctl("--lab", LAB, "recover", "--all")
    assert json.loads(labctl("--lab", LAB, "node", "residue", "w1", "--json").stdout)["entries"] == []


def test_a_source_of_ones_own_bites_and_goes(bcc: LabUnderTest) -> None:
    sh(bcc, "cp /bin/cat /run/victim")
    before = sh(bcc, "bpftool link list | wc -l; /run/victim /etc/hostname")
    planted = inject(PROGRAMS / "deny_open.c", "--id", "mine")
    assert "backend        bcc" in planted.stdout
    assert (
        sh(bcc, "if /run/victim /etc/hostname >/dev/null 2>&1; then echo well; else echo denied; fi") == "denied"
    )
    assert sh(bcc, "cat /etc/hostname"), "another command is well"
    found = evidence("mine")
    assert found["armed"] and found["hits"] > 0 and found["counters"]["seen"] > found["hits"]
    assert found["counters"]["programs"] >= 1
    recovered()
    assert sh(bcc, "bpftool link list | wc -l; /run/victim /etc/hostname") == before
    assert sh(bcc, "ls -d /sys/fs/cgroup/groundfault-* 2>/dev/null", check=False) == ""


def test_hits_agree_with_what_the_victim_saw(bcc: LabUnderTest) -> None:
    counting = PROGRAMS / "count_others.c"
    pid = sh(bcc, "sleep 1000 > /dev/null 2>&1 & echo $!")
    inject(counting, "--id", "counts", "--pid", pid, "--attach", "kprobe:do_nanosleep=count_others")
    before = evidence("counts")["hits"]
    sh(bcc, "for i in 1 2 3 4 5 6 7; do sleep 0.01; done")
    after = evidence("counts")["hits"]
    assert 7 <= after - before < 100
    recovered()


def test_an_agent_that_is_killed_takes_bcc_with_it(bcc: LabUnderTest) -> None:
    inject(PROGRAMS / "deny_open.c", "--id", "killed")
    took = sh(
        bcc,
        "main=$(systemctl show -P MainPID groundfault-agent); helper=$(cat /sys/fs/cgroup/*killed*/cgroup.procs);"
        "kill -KILL $main; began=$(date +%s%N);"
        "while [ -e /proc/$helper ]; do :; done; echo $((($(date +%s%N) - began) / 1000000))",
    )
    assert int(took) < 1000, f"the helper lived for {took} ms"
    assert sh(bcc, "/run/victim /etc/hostname")
    bcc.ready(bcc.nodes[0])
    recovered()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("BPF_ARRAY(hits, u64, 1);\nint kprobe__vfs_read(void *c) { return nowhere; }",
         "does not compile: line 2:40: error: use of undeclared identifier 'nowhere'"),
        ("BPF_ARRAY(hits, u64, 1);\n"
         "int kprobe__vfs_read(void *c) { int z = 0; u64 *v = hits.lookup(&z); return *v; }",
         "R0 invalid mem access 'map_value_or_null'"),
        ("int kprobe__vfs_read(void *c) { return 0; }", "no map called hits"),
        ("BPF_ARRAY(hits, u64, 1);\nint count(void *c) { return 0; }", "nothing of the program was attached"),
        ("BPF_HASH(hits, u64, u64);\nBPF_PERF_OUTPUT(x);\nint kprobe__no_such_fn(void *c) { return 0; }",
         "no_such_fn"),
    ],
    ids=("compiler", "verifier", "no counters", "nowhere", "no such function"),
)  # fmt: skip
def test_refusals_say_why(bcc: LabUnderTest, tmp_path: Path, code: str, words: str) -> None:
    source = tmp_path / "mine.c"
    source.write_text(code)
    refused = inject(source, status=None)
    assert refused.returncode not in (0, 75) and words in refused.stderr and "undone" in refused.stderr
    if "verifier" in refused.stderr:
        assert sh(bcc, "uname -r") in refused.stderr
    recovered()
