"""The QEMU provider on real machines: nodes without the agent, so that what fails here is the provider."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.lab import processes, store
from labctl.lab.model import LabOptions, Node
from labctl.lab.qemu import QemuLab
from labctl.lab.state import read_record, run_dir
from labctl.progress import PlainProgress, SilentProgress
from tests.lab import ssh, thorough

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

SMALL = LabOptions(nodes=2, memory_mib=512, data_mib=64, agent=False)
UP = """
import sys
from labctl.lab import store
from labctl.lab.model import LabOptions
from labctl.progress import PlainProgress
options = LabOptions.model_validate_json(sys.argv[2])
store.create_lab(sys.argv[1]).up(options, lambda node: None, PlainProgress(sys.stdout))
"""


def nothing(_: Node) -> None:
    """Nodes without the agent have nothing to wait for."""


def until(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def up_elsewhere(name: str, options: LabOptions) -> subprocess.Popen[str]:
    """`up` in a process of its own."""
    argv = [sys.executable, "-c", UP, name, options.model_dump_json()]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pids(lab: QemuLab) -> list[int | None]:
    return [status.pid for status in lab.status()]


@pytest.fixture(scope="module", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("labs")
    patch.setenv("XDG_STATE_HOME", str(home))
    yield home
    for name in store.list_labs():
        store.open_lab(name).destroy(SilentProgress())
    patch.undo()


@pytest.fixture(scope="module")
def made(state: Path) -> QemuLab:
    lab = store.create_lab("bare")
    assert isinstance(lab, QemuLab)
    lab.up(SMALL, nothing, PlainProgress())
    return lab


@pytest.fixture
def bare(made: QemuLab) -> QemuLab:
    """Two nodes as they were when the lab was made."""
    made.up(None, nothing, PlainProgress())
    made.reset(nothing, PlainProgress())
    return made


def test_reset_takes_memory_and_both_disks_back(bare: QemuLab) -> None:
    for node in bare.nodes():
        ssh(node, "touch /etc/mark /srv/data/mark /run/mark && sync")
    before = pids(bare)
    bare.reset(nothing, PlainProgress())
    assert len(set(pids(bare)) - set(before)) == len(before), "each is a new process, whose clock has no past"
    for node in bare.nodes():
        assert ssh(node, "ls /etc/mark /srv/data/mark /run/mark", check=False).returncode == 2
        assert ssh(node, "hostname").stdout.strip() == node.name


def test_data_disk_is_on_dm_linear(bare: QemuLab) -> None:
    node = bare.nodes()[0]
    assert ssh(node, "dmsetup table data").stdout.split()[:3] == ["0", "131072", "linear"]
    assert ssh(node, "findmnt -no SOURCE,FSTYPE /srv/data").stdout.split() == ["/dev/mapper/data", "ext4"]


def test_nodes_are_healthy_and_are_who_they_are(bare: QemuLab) -> None:
    ids = set()
    for node in bare.nodes():
        assert ssh(node, "systemctl is-system-running --wait").stdout.strip() == "running"
        assert ssh(node, "cat /etc/hostname").stdout.strip() == node.name
        found = ssh(node, "ls -d /etc/groundfault/node /etc/groundfault/tls /opt/groundfault", check=False)
        assert found.stdout == "", "without an agent there is nothing of one"
        ids.add(ssh(node, "cat /etc/machine-id").stdout)
    assert len(ids) == len(bare.nodes())


def test_nodes_reach_each_other_and_nothing_else(bare: QemuLab) -> None:
    first, second = bare.nodes()
    ssh(first, "ping -c 2 -W 5 w2")
    ssh(second, "ping -c 2 -W 5 w1")
    assert "unreachable" in ssh(first, "ping -c 1 -W 2 192.0.2.1", check=False).stderr
    with socket.create_server(("127.0.0.1", 0)) as server:  # a service of the host's own
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('10.0.2.2', {port}), 5)"
        assert ssh(first, f'python3 -c "{script}"', check=False).returncode == 1


def test_up_on_a_running_lab_changes_nothing(bare: QemuLab) -> None:
    node = bare.nodes()[0]
    ssh(node, "touch /run/mark")
    before = pids(bare)
    bare.up(SMALL, nothing, PlainProgress())
    assert pids(bare) == before
    ssh(node, "ls /run/mark")
    with pytest.raises(LabError, match="other options"):
        bare.up(SMALL.model_copy(update={"nodes": 1}), nothing, PlainProgress())
    assert pids(bare) == before


def test_power_cut_keeps_what_was_flushed_and_repairs_nothing(bare: QemuLab) -> None:
    node, other = bare.nodes()
    ssh(node, "echo planted >> /etc/hosts && echo kept > /srv/data/kept && sync")
    bare.power_off(node.name)
    assert [s.running for s in bare.status()] == [False, True]
    bare.power_on(node.name, PlainProgress())
    assert ssh(node, "cat /srv/data/kept").stdout == "kept\n"
    assert "planted" in ssh(node, "cat /etc/hosts").stdout
    ssh(node, f"ping -c 2 -W 5 {other.name}")
    assert ssh(node, "journalctl --list-boots -q").stdout.count("\n") == 2


def test_up_boots_a_node_that_died(bare: QemuLab) -> None:
    node, other = bare.nodes()
    ssh(other, "touch /run/mark")
    bare.power_off(node.name)
    bare.up(None, nothing, PlainProgress())
    assert all(s.running for s in bare.status())
    ssh(other, "ls /run/mark")


@pytest.mark.parametrize("broken", ["filter", "killed", *thorough("unplugged", "card", "stopped")])
def test_reset_mends_what_cannot_load_a_snapshot(bare: QemuLab, broken: str) -> None:
    node = bare.nodes()[0]
    if broken == "killed":
        bare.power_off(node.name)
    else:
        with bare.qmp(node.name) as qmp:
            if broken == "filter":
                # The node's own graph, as a medium error is planted.
                qmp.execute("blockdev-add", driver="blkdebug", node_name="fault0", image="data0")
                qmp.execute("qom-set", path="/machine/peripheral/datadev", property="drive", value="fault0")
            elif broken == "unplugged":
                qmp.execute("device_del", id="datadev")
            elif broken == "card":
                qmp.execute("device_del", id="lan")
            else:
                qmp.execute("stop")
    if broken == "card":
        until(lambda: ssh(node, "ls /sys/class/net/lan", check=False).returncode != 0, "the card is unplugged")
    bare.reset(nothing, PlainProgress())
    assert ssh(node, "cat /srv/data/seed/0.bin | wc -c").stdout.strip() == "1048576"
    ssh(node, "ping -c 2 -W 5 w2")


def test_down_and_up_again_in_seconds_even_when_a_port_was_taken(bare: QemuLab) -> None:
    first = bare.nodes()[0]
    bare.down(SilentProgress())
    record = read_record(bare.directory / "lab.json")
    assert record is not None
    assert processes.sweep(str(record.run_dir)) == ()
    with socket.create_server(("127.0.0.1", first.ssh_port)):
        bare.up(None, nothing, PlainProgress())
    assert bare.nodes()[0].ssh_port != first.ssh_port
    assert ssh(bare.nodes()[0], "hostname").stdout.strip() == "w1"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_down_ends_what_an_interrupted_up_left(state: Path, number: int) -> None:
    name = f"cut{int(number)}"
    marker = str(run_dir(store.lab_dir(name), name))
    process = up_elsewhere(name, SMALL.model_copy(update={"nodes": 1}))
    try:
        until(lambda: len(processes.sweep(marker)) >= 2, "QEMU and the switch run")
        process.send_signal(number)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.communicate()
    lab = store.open_lab(name)
    lab.down(SilentProgress())
    assert processes.sweep(marker) == ()
    lab.up(None, nothing, PlainProgress())
    assert ssh(lab.nodes()[0], "hostname").stdout.strip() == "w1"
    lab.destroy(SilentProgress())
    assert name not in store.list_labs()


@pytest.mark.thorough
def test_two_ups_at_once_make_one_lab(state: Path) -> None:
    both = [up_elsewhere("twice", SMALL.model_copy(update={"nodes": 1})) for _ in range(2)]
    said = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("up already" in text for text in said) == [False, True], said
    assert sum("waiting for another labctl" in text for text in said) == 1
    store.open_lab("twice").destroy(SilentProgress())


@pytest.mark.thorough
def test_options_of_disks_and_network(state: Path) -> None:
    lab = store.create_lab("options")
    options = LabOptions(nodes=1, memory_mib=512, data_mib=512, agent=False, data_filesystem="xfs", internet=True)
    lab.up(options, nothing, PlainProgress())
    node = lab.nodes()[0]
    assert ssh(node, "findmnt -no FSTYPE /srv/data").stdout.strip() == "xfs"
    assert "default via 10.0.2.2" in ssh(node, "ip route").stdout
    lab.down(SilentProgress())
    lab.up(SMALL.model_copy(update={"nodes": 1}), nothing, PlainProgress())  # other options: made anew
    assert ssh(lab.nodes()[0], "findmnt -no FSTYPE /srv/data").stdout.strip() == "ext4"
    lab.destroy(SilentProgress())


def test_a_node_that_cannot_boot_is_a_lab_error_with_its_console(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "labctl.lab.machine._KERNEL_LINE", "console=ttyS0 quiet panic=0 rdinit=/nothing init=/nothing"
    )
    lab = store.create_lab("lost")
    with pytest.raises(LabError, match="w1 could not boot") as caught:
        lab.up(SMALL.model_copy(update={"nodes": 1}), nothing, PlainProgress())
    assert "panic" in caught.value.hint
    lab.destroy(SilentProgress())
    assert processes.sweep(str(run_dir(store.lab_dir("lost"), "lost"))) == ()
    assert "lost" not in store.list_labs()
