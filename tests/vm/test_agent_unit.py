"""The agent as systemd runs it: what its unit forbids, its restarts, and a node whose clock is far off."""

from __future__ import annotations

import configparser
import json
import time
from collections.abc import Collection
from pathlib import Path

import pytest

import node_agent
from labctl.lab.model import Node
from labctl.transport.base import ConnectError
from labctl.transport.connect import AgentClient, connect
from tests.lab import LabUnderTest, ssh

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("unit_families.py")
UNIT = Path(node_agent.__file__).parent / "systemd" / "groundfault-agent.service"
LIFE = ("Type", "NotifyAccess", "ExecStart", "Restart", "RestartSec", "TimeoutStartSec", "TimeoutStopSec",
        "WatchdogSec", "KillMode", "SyslogIdentifier", "RuntimeDirectory", "RuntimeDirectoryMode",
        "RuntimeDirectoryPreserve", "StateDirectory", "StateDirectoryMode")  # fmt: skip
"""Options of the unit that restrict nothing."""

LEFT_OFF = {
    "RestrictSUIDSGID=yes": {"set_id_bits"},
    "RestrictRealtime=yes": {"realtime"},
    "RestrictNamespaces=yes": {"network_namespaces", "mounts", "write_files", "host_name"},
    "MemoryDenyWriteExecute=yes": {"code_made_at_run_time"},
    "PrivateDevices=yes": {"device_mapper", "loop_device", "read_past_the_cache", "kernel_log", "mounts"},
    "DevicePolicy=closed": {"device_mapper", "loop_device", "read_past_the_cache", "kernel_log"},
    "PrivateMounts=yes": {"mounts"},
    "PrivateTmp=yes": {"mounts", "write_files"},
    "ProtectSystem=yes": {"mounts", "write_files"},
    "ProtectHome=read-only": {"mounts", "write_files"},
    "ProtectKernelTunables=yes": {"mounts", "settings", "bpf", "debugging_files"},
    "ProtectKernelModules=yes": {"mounts", "load_a_module"},
    "ProtectKernelLogs=yes": {"mounts", "kernel_log"},
    "ProtectControlGroups=yes": {"mounts", "control_groups"},
    "ProtectClock=yes": {"clock"},
    "ProtectHostname=yes": {"host_name"},
    "ProtectProc=invisible": {"mounts"},
    "ProcSubset=pid": {"mounts", "device_mapper", "settings", "other_processes"},
    "PrivateNetwork=yes": {"mounts", "network_namespaces"},
    "PrivateIPC=yes": {"mounts", "device_mapper"},
}
"""Options that are not in the unit, and what each would break alone. docs/safety.md tells it in words."""


def restrictions() -> tuple[str, ...]:
    """The options of the unit that may get in the way of a fault."""
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return tuple(f"{name}={value}" for name, value in parser["Service"].items() if name not in LIFE)


@pytest.fixture(scope="module")
def node(lab: LabUnderTest) -> Node:
    lab.reset()
    found = lab.node("w1")
    ssh(found, f"cat > /usr/local/lib/families.py <<'END'\n{SCRIPT.read_text()}\nEND")
    ssh(found, "systemd-run", "--quiet", "--unit=practice", "sleep", "100000")
    return found


def broken(node: Node, *options: str, kinds: Collection[str] = ()) -> dict[str, str]:
    """What does not work under these options of a unit, of these kinds of work or of all."""
    words = " ".join(f"-p '{option}'" for option in options)
    pid = ssh(node, "systemctl", "show", "-P", "MainPID", "practice").stdout.strip()
    program = f"python3 /usr/local/lib/families.py {pid} {' '.join(kinds)}"
    command = f"systemd-run --quiet --wait --collect --pipe {words} {program}"
    answer: dict[str, str] = json.loads(ssh(node, command, timeout=240).stdout)
    ssh(node, "dmsetup remove groundfault-practice; losetup --detach-all", check=False)
    return answer


def test_the_unit_lets_everything_through(node: Node) -> None:
    assert broken(node) == {}, "without any restriction all of it works on this kernel"
    assert broken(node, *restrictions()) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("option", LEFT_OFF)
def test_what_was_left_off_would_break_something(node: Node, option: str) -> None:
    assert set(broken(node, option, kinds=LEFT_OFF[option])) == LEFT_OFF[option]
    assert option.partition("=")[0] not in {o.partition("=")[0] for o in restrictions()}


@pytest.mark.thorough
def test_the_agent_comes_back_as_often_as_it_is_killed(lab: LabUnderTest) -> None:
    node = lab.node("w2")
    for _ in range(7):  # more often than systemd's default limit allows
        pid = ssh(node, "systemctl", "show", "-P", "MainPID", "groundfault-agent").stdout.strip()
        if pid != "0":
            ssh(node, "kill", "-9", pid, check=False)
        time.sleep(1.2)
    lab.ready(node)
    restarts = ssh(node, "systemctl", "show", "-P", "NRestarts", "groundfault-agent").stdout
    assert int(restarts) >= 4
    ssh(node, "systemctl", "stop", "groundfault-agent")
    assert ssh(node, "systemctl", "show", "-P", "Result", "groundfault-agent").stdout.strip() == "success"
    lab.reset()


@pytest.mark.parametrize(
    ("days", "words"), [("-400", "not yet valid: node clock is 20"), ("+9000", "expired: node clock is 20")]
)
def test_a_clock_far_off(lab: LabUnderTest, days: str, words: str) -> None:
    node = lab.node("w3")
    ssh(node, "date", "--set", f"'{days} days'")
    with pytest.raises(ConnectError, match=words), connect(node, lab.authority) as transport:
        AgentClient(transport).facts()
    lab.ready(node)
    with connect(node, lab.authority) as transport:
        before = time.time()
        clock = AgentClient(transport).facts().clock_unix_s
        assert before - 0.5 <= clock <= time.time() + 0.5


def test_after_a_reset_every_clock_is_right(lab: LabUnderTest) -> None:
    lab.reset()
    for node in lab.nodes:
        with connect(node, lab.authority) as transport:
            before = time.time()
            clock = AgentClient(transport).facts().clock_unix_s
            assert before - 0.5 <= clock <= time.time() + 0.5
