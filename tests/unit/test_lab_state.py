"""What a lab remembers, and which processes are its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import LabError, UsageError
from labctl.lab import fleet, identity, machine, processes, provision, qemu, store
from labctl.lab.accelerator import emulation
from labctl.lab.model import LabOptions
from labctl.lab.qemu import QemuLab
from labctl.lab.state import Ports, Record, private_dir, read_record, run_dir, write_record
from labctl.progress import SilentProgress


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def a_record(tmp_path: Path, nodes: int = 2) -> Record:
    return Record(
        name="x",
        run_dir=tmp_path / "run" / "groundfault" / "x",
        options=LabOptions(nodes=nodes),
        image="key",
        qemu="QEMU 1",
        accelerator=emulation("because"),
        ports=tuple(Ports(ssh=4000 + i, agent=5000 + i) for i in range(nodes)),
    )


@pytest.fixture
def fake_qemu(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A harmless process that looks like a node of the lab whose run directory is tmp_path/mine."""
    program = tmp_path / "qemu-system-x86_64"
    program.symlink_to("/usr/bin/tail")
    marker = tmp_path / "mine"
    marker.mkdir()
    (marker / "w1.qmp").touch()
    process = subprocess.Popen([str(program), "-f", str(marker / "w1.qmp")])
    yield process
    process.kill()
    process.wait()


def test_record_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    assert read_record(path) is None
    write_record(path, a_record(tmp_path))
    assert read_record(path) == a_record(tmp_path)


def test_a_snapshot_of_machines_of_another_shape_is_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "image_key", lambda *_: "key")
    monkeypatch.setattr(qemu, "qemu_version", lambda: "QEMU 1")
    lab = qemu.QemuLab(tmp_path / "x")
    old = a_record(tmp_path)
    assert "another way" in lab._outdated(old, old.options)
    new = old.model_copy(update={"shape": machine.SHAPE})
    assert "another way" not in lab._outdated(new, new.options)


def test_labels_are_remembered_and_cost_nothing_where_nobody_uses_them(tmp_path: Path) -> None:
    path = store.lab_dir("x") / "lab.json"
    write_record(path, a_record(tmp_path))
    assert '"labels"' not in path.read_text()
    lab = store.open_lab("x")
    lab.set_labels("w2", {"role": "db"})
    assert [dict(node.labels) for node in store.open_lab("x").nodes()] == [{}, {"role": "db"}]
    with pytest.raises(UsageError, match="no node 'w9'"):
        lab.set_labels("w9", {})


def test_addresses_of_nodes_on_the_lab_network() -> None:
    assert identity.lan_addresses(3) == ("10.77.0.3", "fe80::5054:ff:fe67:203")
    assert identity.lan_addresses(31)[1] == "fe80::5054:ff:fe67:21f"


def test_damaged_record_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    path.write_text('{"provider": "qemu", "future": 1}')
    with pytest.raises(LabError, match=r"lab\.json"):
        read_record(path)


def test_nodes_and_machines_follow_the_record(tmp_path: Path) -> None:
    record = a_record(tmp_path, nodes=3)
    nodes = provision.nodes(tmp_path, record)
    assert [(n.name, n.address, n.ssh_port, n.agent_port) for n in nodes] == [
        ("w1", "127.0.0.1", 4000, 5000),
        ("w2", "127.0.0.1", 4001, 5001),
        ("w3", "127.0.0.1", 4002, 5002),
    ]
    assert [m.index for m in provision.machines(tmp_path, record)] == [1, 2, 3]


def test_socket_paths_stay_short_in_a_deep_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    directory = run_dir(Path("/home/someone") / ("deep" * 60) / "labs" / ("n" * 31), "n" * 31)
    assert len(str(directory / "switch" / "ctl")) < 90
    assert directory != run_dir(Path("/elsewhere/labs/x"), "n" * 31)


def test_run_directory_must_be_ours_alone(tmp_path: Path) -> None:
    private_dir(tmp_path / "groundfault" / "x")
    assert (tmp_path / "groundfault" / "x").stat().st_mode & 0o777 == 0o700
    (tmp_path / "groundfault").chmod(0o777)
    with pytest.raises(LabError, match="of our own"):
        private_dir(tmp_path / "groundfault" / "x")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(LabError, match="of our own"):
        private_dir(tmp_path / "link" / "x")


def test_process_is_known_by_its_command_line_not_by_its_pid(
    tmp_path: Path, fake_qemu: subprocess.Popen[bytes]
) -> None:
    pidfile = tmp_path / "w1.pid"
    mine = str(tmp_path / "mine")
    assert processes.recorded(pidfile, mine) is None
    pidfile.write_text(f"{fake_qemu.pid}\n")
    assert processes.recorded(pidfile, mine) == fake_qemu.pid
    assert processes.recorded(pidfile, str(tmp_path / "min")) is None  # another lab, whose name begins alike
    pidfile.write_text(f"{os.getpid()}\n")  # the pid was used again
    assert processes.recorded(pidfile, mine) is None
    pidfile.write_text("")  # QEMU has opened it and not yet written it
    assert processes.recorded(pidfile, mine) is None


def test_sweep_finds_a_process_without_a_pidfile_and_end_ends_it(
    tmp_path: Path, fake_qemu: subprocess.Popen[bytes]
) -> None:
    mine = str(tmp_path / "mine")
    assert processes.sweep(mine) == (fake_qemu.pid,)
    processes.end([fake_qemu.pid, os.getpid()], mine)  # not us: we have no such command line
    assert not processes.belongs(fake_qemu.pid, mine)
    assert processes.sweep(mine) == ()


def test_store(tmp_path: Path) -> None:
    assert store.list_labs() == ()
    with pytest.raises(LabError, match=r"no lab a; labs: none") as caught:
        store.open_lab("a")
    assert "labctl up --lab a" in caught.value.hint
    lab = store.create_lab("a", "qemu")
    assert store.list_labs() == ()  # making nothing is no lab
    assert lab.nodes() == ()
    assert lab.status() == ()
    write_record(store.lab_dir("a") / "lab.json", a_record(tmp_path))
    assert store.list_labs() == ("a",)
    assert isinstance(store.open_lab("a"), QemuLab)
    with pytest.raises(LabError, match="exists with provider qemu"):
        store.create_lab("a", "ssh")
    for bad in ("../x", "A", "", "x" * 32):
        with pytest.raises(UsageError):
            store.lab_dir(bad)
    with pytest.raises(UsageError, match="allowed are qemu, ssh, vagrant"):
        store.create_lab("b", "docker")


def test_lab_that_is_off(tmp_path: Path) -> None:
    write_record(store.lab_dir("x") / "lab.json", a_record(tmp_path))
    lab = store.open_lab("x")
    assert [(s.node.name, s.running, s.detail) for s in lab.status()] == [
        ("w1", False, "off"),
        ("w2", False, "off"),
    ]
    lab.down(SilentProgress())
    with pytest.raises(LabError, match="no golden snapshot"):
        lab.reset(lambda _: None, SilentProgress())
    with pytest.raises(UsageError, match="its nodes: w1, w2"):
        lab.console("w9")
    lab.destroy(SilentProgress())
    assert store.list_labs() == ()
    assert not store.lab_dir("x").exists()


def test_each_waits_for_all_and_raises_the_first() -> None:
    done: list[int] = []

    def act(number: int) -> None:
        if number == 1:
            raise LabError("one")
        done.append(number)

    with pytest.raises(LabError, match="one"):
        fleet.each([0, 1, 2], act)
    assert sorted(done) == [0, 2]
    fleet.each([], act)
