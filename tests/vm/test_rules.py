"""Faults of the rule table on each kernel: whom they hit, which calls, when, and that they end."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator

import pytest

from ebpf.coverage import by_sockets
from labctl.errors import LabctlError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.injection import InjectionView
from tests.lab import KernelNode
from tests.user import until
from tests.vm.witness import install, measure, prepared

pytestmark = pytest.mark.vm

SCOPE = {"cgroup": "/witness"}
WELL = "ok 4096"


@pytest.fixture(scope="module")
def node(kernel_node: KernelNode, tmp_path_factory: pytest.TempPathFactory) -> KernelNode:
    install(kernel_node, tmp_path_factory.mktemp("calls"))
    kernel_node.sh("mkdir -p /srv/data/witness /srv/data/elsewhere /mnt/bound; "
                   "mount --bind /srv/data/witness /mnt/bound")  # fmt: skip
    return kernel_node


@pytest.fixture
def agent(node: KernelNode) -> Iterator[AgentClient]:
    with connect(node.node, node.lab.authority) as transport:
        client = AgentClient(transport)
        yield client
        ended = client.recover(everything=True).injections
        assert all(one.state == "recovered" for one in ended), ended
        assert client.residue() == ()


def _counters(view: InjectionView) -> dict[str, int]:
    assert view.evidence is not None
    return {"hits": view.evidence.hits, **view.evidence.counters}


def _apply(agent: AgentClient, fault: str, **parameters: object) -> InjectionView:
    view = agent.apply(f"rules-{uuid.uuid4().hex[:8]}", fault, parameters, 600)
    assert view.state == "active" and view.evidence is not None and view.evidence.armed, view
    return view


def _seen(agent: AgentClient) -> dict[str, int]:
    """The counters of the only injection there is."""
    (one,) = agent.list().injections
    return _counters(one)


# -- when --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "pattern"),
    [
        ("always", "EEEEEEEEEEEE"),
        ("first:2", "EE.........."),
        ("ratio:1/3", "..E..E..E..E"),
    ],
)
def test_a_schedule_picks_these_calls(node: KernelNode, agent: AgentClient, schedule: str, pattern: str) -> None:
    with prepared(node, "pread64", len(pattern)) as witness:
        _apply(agent, "file_error", **SCOPE, path="/srv/data/witness", schedule=schedule)
        answers = witness.go()
    assert answers == ["EIO" if mark == "E" else WELL for mark in pattern]
    seen = _seen(agent)
    assert (seen["matched"], seen["hits"]) == (len(pattern), pattern.count("E"))
    assert seen["suppressed_by_schedule"] == pattern.count(".")
    agent.recover(everything=True)
    assert measure(node, "pread64", 12) == [WELL] * 12, "gone"


def test_a_seed_decides_and_repeats(node: KernelNode, agent: AgentClient) -> None:
    drawn = {}
    for name, seed in (("one", 7), ("again", 7), ("other", 8)):
        with prepared(node, "pread64", 200) as witness:
            _apply(agent, "file_error", **SCOPE, path="/srv/data/witness", schedule="probability:0.3", seed=seed)
            drawn[name] = witness.go()
        agent.recover(everything=True)
    assert drawn["one"] == drawn["again"] != drawn["other"]
    for answers in drawn.values():
        assert 35 <= answers.count("EIO") <= 87, "200 draws at 0.3: 60, give or take four standard deviations"


def test_bursts_follow_the_clock(node: KernelNode, agent: AgentClient) -> None:
    _apply(agent, "file_error", **SCOPE, path="/srv/data/witness", schedule="burst:2/2")
    answers: list[str] = []

    def both() -> bool:
        answers.extend(measure(node, "pread64"))
        return {"EIO", WELL} <= set(answers)

    until("both phases", both, 30)


def test_a_budget_is_kept(node: KernelNode, agent: AgentClient) -> None:
    with prepared(node, "pread64", 9) as witness:
        _apply(agent, "file_error", **SCOPE, path="/srv/data/witness", budget=4)
        assert witness.go() == ["EIO"] * 4 + [WELL] * 5
    assert _seen(agent)["suppressed_by_budget"] == 5


def test_two_rules_compose(node: KernelNode, agent: AgentClient) -> None:
    """The first that bites answers; taking one out leaves the other."""
    with prepared(node, "pread64", 6) as witness:
        where = {**SCOPE, "path": "/srv/data/witness"}
        first = _apply(agent, "file_error", **where, errno="ENOSPC", schedule="every:2")
        _apply(agent, "file_error", **where, errno="EIO", schedule="every:3")
        assert witness.go() == [WELL, "ENOSPC", WELL, "ENOSPC", "EIO", "ENOSPC"]
    agent.recover((first.id,))
    assert measure(node, "pread64", 3).count("EIO") == 1


# -- what --------------------------------------------------------------------------------------------------------


def test_sockets_pipes_and_directories_never_match(node: KernelNode, agent: AgentClient) -> None:
    _apply(agent, "file_error", **SCOPE, operation="read", errno="EIO")
    for entry in ("read_pipe", "read_socket", "getdents64"):
        (answer,) = measure(node, entry)
        assert answer.startswith("ok"), entry


PATHS = {  # at most sixteen rules compose
    "/srv/data/witness": True,
    "/srv/data/witness/pread64/file0": True,
    "/srv/data/witness/pread64/file*": True,
    "/srv/data/*/pread64/f?le0": True,
    "/srv/data/**/file0": True,
    "/srv/data/**": True,
    "/srv/data/**/*": True,
    "/mnt/bound/pread64": True,
    "/srv/data/other-name": True,
    "/srv/data/witness/*": False,
    "/srv/data/witness/pread64/file1*": False,
    "/srv/data/witness/pread64/ile?": False,
    "/srv/data/**/pread64": False,
    "/srv/data/elsewhere": False,
    "/srv/data/*": False,
    "/usr": False,
}


def test_paths(node: KernelNode, agent: AgentClient) -> None:
    """Wildcards, a bind mount, another name (hard link) of a file: one call, and whose it is."""
    with prepared(node, "pread64") as witness:
        node.sh("ln -f /srv/data/witness/pread64/file0 /srv/data/other-name")
        planted = {
            path: _apply(agent, "file_error", **SCOPE, path=path, schedule="every:1000").id for path in PATHS
        }
        assert witness.go() == [WELL]
        found = {one.id: _counters(one)["matched"] == 1 for one in agent.list().injections}
        node.sh("rm /srv/data/other-name")
    assert {path: found[name] for path, name in planted.items()} == PATHS


def test_a_rename_does_not_hide_a_file(node: KernelNode, agent: AgentClient) -> None:
    with prepared(node, "pread64", 2) as witness:
        _apply(agent, "file_error", **SCOPE, path="/srv/data/witness/pread64")
        node.sh("mv /srv/data/witness/pread64 /srv/data/moved")
        answers = witness.go()
        node.sh("rm -rf /srv/data/moved")
    assert answers == ["EIO", "EIO"]


def test_devices_and_open_flags(node: KernelNode, agent: AgentClient) -> None:
    disk = node.sh("findmnt -no SOURCE /srv/data")
    root = node.sh("findmnt -no SOURCE /")
    for device, want in ((disk, "EIO"), (root, WELL)):
        _apply(agent, "file_error", **SCOPE, device=device)
        assert measure(node, "pread64") == [want]
        agent.recover(everything=True)
    _apply(agent, "file_error", **SCOPE, open_flags=["O_DIRECT"], path="/srv/data")
    assert measure(node, "pread64") == [WELL]


def test_addresses_and_ports(node: KernelNode, agent: AgentClient) -> None:
    """By the port that a listener really has, and by network; IPv4 and IPv6 apart."""
    cases = (
        ({"address": "127.0.0.0/8"}, "connect_tcp4", True),
        ({"address": "127.0.0.0/8"}, "connect_tcp6", False),
        ({"address": "::1"}, "connect_tcp6", True),
        ({"address": "10.0.0.0/8"}, "connect_tcp4", False),
        ({"address": "127.0.0.1", "port": 1}, "connect_tcp4", False),
        ({"address": "127.0.0.0/8", "operation": "send", "min_size_bytes": 1 << 20}, "send", False),
        ({"address": "127.0.0.0/8", "operation": "send"}, "send", True),
    )
    for parameters, entry, hit in cases:
        with prepared(node, entry) as witness:
            _apply(agent, "connect_error", **SCOPE, errno="EHOSTUNREACH", **parameters)
            (answer,) = witness.go()
        assert (answer == "EHOSTUNREACH") == hit, (parameters, answer)
        agent.recover(everything=True)


def test_socket_hooks_of_control_groups(node: KernelNode, agent: AgentClient) -> None:
    """For kernels whose security hooks cannot be reached; every entry of its list, both ways."""
    for family in ("connect", "bind"):
        fails, passes = by_sockets(family)
        for entry in (*fails, *passes):
            if entry.startswith("io_uring_bind") and node.kernel == "debian12":
                continue  # since Linux 6.11
            with prepared(node, entry) as witness:
                view = _apply(
                    agent, "connect_error", **SCOPE, operation=family, errno="EUCLEAN", backend="sockets"
                )
                (answer,) = witness.go()
            assert "cgroup" in view.backend
            assert (answer == "EUCLEAN") == (entry in fails), (entry, answer)
            agent.recover(everything=True)


def test_memory_from_a_size_on(node: KernelNode, agent: AgentClient) -> None:
    with prepared(node, "mmap_private") as witness:
        _apply(agent, "memory_alloc_error", **SCOPE, min_size_bytes=4096)
        assert witness.go() == ["ENOMEM"]
    agent.recover(everything=True)
    with prepared(node, "mmap_private") as witness:
        _apply(agent, "memory_alloc_error", **SCOPE, min_size_bytes=1 << 44)
        assert witness.go()[0].startswith("ok")


def test_one_way_into_a_family(node: KernelNode, agent: AgentClient) -> None:
    """A single call by name, on a kernel that cannot override calls: the hook knows which call it is in."""
    _apply(agent, "syscall_error", **SCOPE, operation="pread64", errno="EUCLEAN", backend="security")
    assert measure(node, "pread64") == ["EUCLEAN"]
    assert measure(node, "read") == [WELL]


@pytest.mark.parametrize(
    ("fault", "parameters", "entry", "answer"),
    [
        ("fork_error", {"what": "process"}, "fork", "EAGAIN"),
        ("fork_error", {"what": "thread"}, "clone_thread", "EAGAIN"),
        ("fork_error", {"what": "exec", "errno": "EACCES"}, "execve", "EACCES"),
        ("fd_exhausted", {}, "openat", "EMFILE"),
        ("fd_exhausted", {"errno": "ENFILE"}, "socket_tcp", "ENFILE"),
        ("signal_on_syscall", {"operation": "pread64", "signal": "SIGUSR1", "schedule": "every:1"}, "pread64",
         "SIGUSR1"),
        ("syscall_error", {"operation": "fsync", "errno": "EIO"}, "fsync", "EIO"),
        ("short_io", {"operation": "read", "max_bytes": 1000}, "pread64", "ok 1000"),
        ("short_io", {"operation": "write", "max_bytes": 7}, "write_pipe", "ok 7"),
    ],
)  # fmt: skip
def test_the_other_faults(
    node: KernelNode, agent: AgentClient, fault: str, parameters: dict[str, object], entry: str, answer: str
) -> None:
    with prepared(node, entry) as witness:
        view = _apply(agent, fault, **SCOPE, **parameters)
        said = (
            witness.process.communicate("go\n\n", timeout=120)[0] if answer.startswith("SIG") else witness.go()[0]
        )
        if answer.startswith("SIG"):
            assert "ok" not in said and witness.process.returncode != 0
        else:
            assert said == answer
    assert _seen(agent)["hits"] >= 1
    if node.kernel == "lab" and parameters.get("operation") == "fsync":
        assert "override" in view.backend
    agent.recover(everything=True)
    assert measure(node, entry)[0].startswith("ok")


def test_a_delay(node: KernelNode, agent: AgentClient) -> None:
    with prepared(node, "pread64", 2) as witness:
        _apply(agent, "syscall_delay", **SCOPE, operation="pread64", delay_ms=2000)
        began = time.monotonic()
        assert witness.go() == [WELL, WELL]
        assert 4 <= time.monotonic() - began < 20
    agent.recover(everything=True)
    with prepared(node, "pread64", 2) as witness:
        began = time.monotonic()
        assert witness.go() == [WELL, WELL]
        assert time.monotonic() - began < 4


# -- whom --------------------------------------------------------------------------------------------------------


def test_a_process_and_nobody_else(node: KernelNode, agent: AgentClient) -> None:
    with prepared(node, "pread64", cgroup="") as victim, prepared(node, "preadv", cgroup="") as other:
        _apply(agent, "file_error", pid=victim.pid, path="/srv/data/witness")
        assert other.go() == [WELL]
        assert victim.go() == ["EIO"]


def test_a_tree_follows_children_wherever_they_go(node: KernelNode, agent: AgentClient) -> None:
    node.sh("echo hello > /srv/data/t; nohup sh -c 'while [ ! -e /run/go ]; do sleep 0.1; done; "
            "sh -c \"echo \\$\\$ > /sys/fs/cgroup/witness/cgroup.procs; cat /srv/data/t\" > /run/out 2>&1; "
            "echo done >> /run/out' > /dev/null 2>&1 < /dev/null & echo $! > /run/tree.pid")  # fmt: skip
    pid = int(node.sh("cat /run/tree.pid"))
    _apply(agent, "file_error", tree=pid, path="/srv/data/t")
    assert node.sh("cat /srv/data/t") == "hello", "not of the tree"
    node.sh("touch /run/go")
    until("the child has run", lambda: "done" in node.sh("cat /run/out 2>/dev/null", check=False))
    assert "Input/output error" in node.sh("cat /run/out; rm -f /run/go /run/out")
    until("its processes are forgotten", lambda: "no processes" in _notes(agent))


def _notes(agent: AgentClient) -> str:
    (one,) = agent.list().injections
    evidence = one.evidence
    return " ".join(evidence.notes) if evidence else ""


UNIT = """[Service]
ExecStart=/bin/sh -c 'cat /srv/data/u > /run/u.out 2>&1; exec sleep 1000'
"""


def test_a_unit_that_does_not_run_yet_is_hit_from_its_first_call(node: KernelNode, agent: AgentClient) -> None:
    node.sh(f"echo hello > /srv/data/u; printf '%s' \"{UNIT}\" > /run/systemd/system/patient.service; "
            "systemctl daemon-reload")  # fmt: skip
    view = _apply(agent, "file_error", unit="patient", path="/srv/data/u")
    assert view.evidence is not None and "armed, and waits" in " ".join(view.evidence.notes)
    for _ in range(3):
        node.sh("rm -f /run/u.out; systemctl restart patient")
        until("it has read", lambda: node.sh("cat /run/u.out 2>/dev/null", check=False) != "")
        assert "Input/output error" in node.sh("cat /run/u.out"), "each new start is hit, in a new control group"
        assert node.sh("cat /srv/data/u") == "hello", "others are not"
    agent.recover(everything=True)
    node.sh("rm -f /run/u.out; systemctl restart patient")
    until("it has read", lambda: node.sh("cat /run/u.out 2>/dev/null", check=False) == "hello")
    node.sh("systemctl stop patient; rm /run/systemd/system/patient.service; systemctl daemon-reload")


REFUSED: tuple[tuple[dict[str, object], str], ...] = (
    ({"unit": "nosuch"}, r"unit: nosuch\.service is not-found"),
    ({"unit": "groundfault-agent"}, "never a target"),
    ({"unit": "ssh"}, "never a target"),
    ({"pid": 1}, "is pid 1"),
    ({"pid": 2}, "is a kernel thread"),
    ({"pid": 4194300}, "there is no process"),
    ({"cgroup": "/"}, "the whole node"),
    ({"cgroup": "/system.slice"}, "holds"),
    ({"cgroup": "/nowhere"}, "there is no"),
    ({"container": "nosuch"}, "does not run on this node"),
    ({}, "nobody is named"),
    ({**SCOPE, "unit": "cron"}, "exclude each other"),
    ({**SCOPE, "path": "srv"}, "not absolute"),
    ({**SCOPE, "path": "/nowhere/at/all"}, "there is no /nowhere"),
    ({**SCOPE, "operation": "nosuch"}, "operation"),
    ({**SCOPE, "errno": "EWHAT"}, "not an errno"),
)


def test_refused(agent: AgentClient) -> None:
    for parameters, said in REFUSED:
        fault = "syscall_error" if "operation" in parameters else "file_error"
        with pytest.raises(LabctlError, match=said):
            agent.apply("refused-1", fault, parameters, 60)
    assert agent.list().injections == ()


def test_the_agent_and_sshd_are_never_targets(node: KernelNode, agent: AgentClient) -> None:
    for command in ("systemctl show -P MainPID groundfault-agent", "pgrep -o -x sshd"):
        with pytest.raises(LabctlError, match=r"is the agent|is sshd"):
            agent.apply("refused-1", "file_error", {"pid": int(node.sh(command))}, 60)


def test_a_call_that_nothing_reaches_says_what_could(node: KernelNode, agent: AgentClient) -> None:
    if node.kernel == "lab":
        _apply(agent, "syscall_error", **SCOPE, operation="getpid", backend="override")
        return
    with pytest.raises(LabctlError) as refused:
        agent.apply("refused-1", "syscall_error", {**SCOPE, "operation": "getpid", "backend": "override"}, 60)
    assert re.search("strace", str(refused.value) + str(getattr(refused.value, "hint", "")))
