"""Bad luck with the rule table: the agent dies or stands still at full rate, many rules, ten thousand changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.lab import KernelNode, KernelNodes, ssh
from tests.user import until

pytestmark = pytest.mark.vm

DRIVER = Path(__file__).with_name("rules_driver.py")
CYCLES = 10_000

# Reads as fast as it can; fifty times a second it writes when (monotonic) it last saw an error, and how many.
VICTIM = """
import os, time
fd = os.open("/srv/data/rate", os.O_RDONLY)
n = errors = last = 0
out = os.open("/run/rate.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
tell = time.monotonic()
while True:
    try:
        os.pread(fd, 4096, 0)
    except OSError:
        errors, last = errors + 1, time.monotonic()
    n += 1
    if time.monotonic() > tell:
        tell = time.monotonic() + 0.02
        os.pwrite(out, b"%.3f %d %d\\n" % (last, errors, n), 0)
"""


@pytest.fixture(scope="module")
def node(kernel_nodes: KernelNodes) -> Iterator[KernelNode]:
    found = kernel_nodes("debian13")
    found.lab.reset()
    found.sh(f"head -c 4096 /dev/zero > /srv/data/rate; cat > /run/rate.py <<'END'\n{VICTIM}\nEND\n"
             f"cat > /run/{DRIVER.name} <<'END'\n{DRIVER.read_text()}\nEND")  # fmt: skip
    yield found
    found.lab.reset()


def _rate(node: KernelNode) -> tuple[float, int, int]:
    """When the victim last saw an error (its monotonic clock), how many it saw, how many reads it made."""
    words = node.sh("cat /run/rate.out 2>/dev/null", check=False).split()
    return (float(words[0]), int(words[1]), int(words[2])) if len(words) == 3 else (0.0, 0, 0)


def _error_age(node: KernelNode) -> float:
    """Seconds since the victim last saw an error, at one look."""
    look = "import time; print(time.monotonic() - float(open('/run/rate.out').read().split()[0]))"
    return float(node.sh(f'python3 -c "{look}"'))


def _drive(node: KernelNode, *words: str) -> dict[str, Any]:
    done = ssh(node.node, f"/usr/bin/python3 /run/{DRIVER.name} {' '.join(words)}", timeout=400)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def rate(node: KernelNode) -> Iterator[None]:
    """A unit that reads at full rate, and leaves the processor to whoever else wants it."""
    node.sh("systemd-run --unit=rate --nice=15 --quiet /usr/bin/python3 /run/rate.py")
    until("it reads", lambda: _rate(node)[2] > 0)
    yield
    node.sh("systemctl stop rate; rm /run/rate.out")


@pytest.fixture
def client(node: KernelNode) -> Iterator[AgentClient]:
    with connect(node.node, node.lab.authority) as transport:
        yield AgentClient(transport)


@pytest.mark.thorough
def test_the_agent_is_killed_at_full_rate(node: KernelNode, rate: None, client: AgentClient) -> None:
    """Links die with the process that holds them: the fault is gone within a second, and no error comes later."""
    client.apply("killed-1", "file_error", {"unit": "rate", "path": "/srv/data/rate"}, 600)
    until("it bites", lambda: _rate(node)[1] > 100)
    node.sh("systemctl mask --runtime --quiet groundfault-agent")
    kill = "import os, time, sys; print(time.monotonic()); os.kill(int(sys.argv[1]), 9)"
    killed = float(node.sh(f"python3 -c '{kill}' $(systemctl show -P MainPID groundfault-agent)"))
    until("it reads well again", lambda: _error_age(node) > 3)
    last, errors, _ = _rate(node)
    assert last < killed + 1.0, "gone within a second"
    assert "groundfault" not in node.sh("bpftool link list; bpftool prog list | grep -c lsm__ || true")
    node.sh("systemctl unmask --runtime --quiet groundfault-agent; systemctl reset-failed groundfault-agent; "
            "systemctl start groundfault-agent")  # fmt: skip
    with connect(node.node, node.lab.authority) as transport:
        fresh = AgentClient(transport)
        until("the agent is back", lambda: _recovered(fresh))
        assert fresh.residue(timeout_s=240.0) == (), "beside a process that never pauses"
    assert _rate(node)[1] == errors, "no stray error after the restart"


def _recovered(client: AgentClient) -> bool:
    try:
        return client.list(ended=True, ids=("killed-1",)).injections[0].state == "recovered"
    except Exception:
        return False


def test_the_agent_stands_still_and_the_lease_ends(node: KernelNode, rate: None, client: AgentClient) -> None:
    """The deadline is compared in the program: it needs no agent."""
    client.apply("frozen-1", "file_error", {"unit": "rate", "path": "/srv/data/rate"}, 20)
    until("it bites", lambda: _error_age(node) < 1)
    node.sh("systemctl kill -s STOP groundfault-agent")
    frozen = time.monotonic()
    try:
        until("the lease is over", lambda: _error_age(node) > 2, 60)
        assert 10 < time.monotonic() - frozen < 40, "not at once, and not for ever"
    finally:
        node.sh("systemctl kill -s CONT groundfault-agent")
    until("the agent recovers it, too", lambda: client.list().injections == (), 30)
    assert client.residue() == ()


@pytest.mark.thorough
def test_ten_thousand_changes_leave_nothing(node: KernelNode) -> None:
    found = _drive(node, "leak", str(CYCLES), "20")
    before, after = found["before"], found["after"]
    assert {k: v for k, v in after.items() if k != "kib"} == {k: v for k, v in before.items() if k != "kib"}
    assert after["kib"] - before["kib"] < 1024, "less than 100 bytes a change"
    assert found["links_at_end"] == before["link"] - 5, "the hook and four that keep members are detached"
    print(f"a rule in and out: {found['each_ms']:.2f} ms")


def test_a_thousand_rules(node: KernelNode) -> None:
    found = _drive(node, "many", "1000")
    assert (found["there"], found["attached"], found["left"]) == (1001, True, 1)
    assert found["last_ms"] < 3 * found["first_ms"] + 1, "the thousandth costs what the first does"
