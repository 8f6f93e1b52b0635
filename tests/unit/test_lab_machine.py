"""The command line of a node, its identity, ports, memory: pure or nearly so."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.errors import LabError
from labctl.lab import accelerator as accelerating
from labctl.lab import footprint as at
from labctl.lab import identity, machine, memory, ports
from labctl.lab.accelerator import Accelerator, accelerator, emulation, trial_argv
from labctl.lab.machine import Machine, Places
from labctl.lab.model import LabOptions
from labctl.progress import SilentProgress


def a_machine(internet: bool = False) -> Machine:
    return Machine(
        lab="default",
        index=2,
        places=Places(Path("/state/w2"), Path("/run/x"), "w2"),
        kernel=Path("/k"),
        initrd=Path("/i"),
        accelerator=emulation("because"),
        memory_mib=768,
        cpus=1,
        internet=internet,
        forwards=((4001, 22), (4002, 7443)),
    )


def option(argv: tuple[str, ...], name: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == name]


def test_control_ports_are_on_the_loopback_and_nothing_gets_out() -> None:
    mgmt = option(machine.argv(a_machine(), paused=False), "-netdev")[0]
    assert mgmt == (
        "user,id=mgmtnet,ipv6=off,restrict=on,hostfwd=tcp:127.0.0.1:4001-:22,hostfwd=tcp:127.0.0.1:4002-:7443"
    )
    assert "restrict" not in option(machine.argv(a_machine(internet=True), paused=False), "-netdev")[0]


def test_devices_that_faults_act_on_have_their_names() -> None:
    devices = option(machine.argv(a_machine(), paused=False), "-device")
    ids = {part.removeprefix("id=") for device in devices for part in device.split(",") if part.startswith("id=")}
    assert {"rootdev", "datadev", "mgmt", "lan", "rp1", "spare1", "spare2"} <= ids
    assert any(d.startswith("scsi-hd,") and "drive=data0" in d and "serial=gfdata" in d for d in devices)
    assert not any("nvme" in d for d in devices)  # an NVMe device cannot be snapshotted


def test_every_disk_is_a_qcow2_node_so_that_snapshots_work() -> None:
    disks = option(machine.argv(a_machine(), paused=False), "-blockdev")
    assert [d.split(",")[:2] for d in disks] == [
        ["driver=qcow2", "node-name=root0"],
        ["driver=qcow2", "node-name=data0"],
    ]


def test_emulation_avoids_the_slow_string_instructions() -> None:
    argv = machine.argv(a_machine(), paused=True)
    assert option(argv, "-cpu") == ["max,erms=off"]
    assert option(argv, "-accel")[0].startswith("tcg,thread=multi")
    assert argv[-1] == "-S"
    assert "-S" not in machine.argv(a_machine(), paused=False)


@pytest.mark.parametrize(("cpus", "shown"), [(1, "cpus=1,maxcpus=2"), (4, "cpus=4,maxcpus=4")])
def test_no_machine_is_for_one_processor_only(cpus: int, shown: str) -> None:
    """QEMU would leave out memory barriers, and lose requests to disks."""
    assert option(machine.argv(replace(a_machine(), cpus=cpus), paused=False), "-smp") == [shown]


def test_pidfile_and_socket_are_known_before_the_start() -> None:
    argv = machine.argv(a_machine(), paused=False)
    assert option(argv, "-pidfile") == ["/run/x/w2.pid"]
    assert option(argv, "-qmp") == ["unix:/run/x/w2.qmp,server=on,wait=off"]


def test_identity_archive() -> None:
    key = identity.new_key()
    files = identity.identity_files(
        "default",
        2,
        LabOptions(nodes=3, data_filesystem="xfs"),
        login=key.public,
        host_key=key,
        tls={"ca.pem": b"CA", "node.key": b"SECRET"},
    )
    with tarfile.open(fileobj=io.BytesIO(identity.identity_tar(files))) as tar:
        entries = {entry.name: entry for entry in tar}
        text = {
            name: file.read().decode(errors="replace")
            for name, entry in entries.items()
            if (file := tar.extractfile(entry)) is not None
        }
    assert text["etc/groundfault/node"] == text["etc/hostname"] == "w2\n"
    assert "10.77.0.3 w3\n" in text["etc/hosts"]
    assert "LAN=10.77.0.2/24\nGATEWAY=\n" in text["etc/groundfault/network"]
    assert text["etc/resolv.conf"] == ""
    assert text["etc/groundfault/data-filesystem"] == "xfs\n"
    assert text["root/.ssh/authorized_keys"] == key.public + "\n"
    for secret in ("etc/ssh/ssh_host_ed25519_key", "etc/groundfault/tls/node.key", "root/.ssh/authorized_keys"):
        assert entries[secret].mode == 0o600
    assert entries["root/.ssh"].mode == 0o700
    assert all(entry.uid == entry.gid == 0 for entry in entries.values())


def test_internet_gives_a_way_out_and_a_resolver() -> None:
    key = identity.new_key()
    files = identity.identity_files("x", 1, LabOptions(internet=True), login="", host_key=key, tls={})
    assert b"GATEWAY=10.0.2.2\n" in files["etc/groundfault/network"][0]
    assert files["etc/resolv.conf"][0] == b"nameserver 10.0.2.3\n"


def test_a_bare_node_has_neither_name_nor_certificates_of_an_agent() -> None:
    key = identity.new_key()
    files = identity.identity_files("x", 1, LabOptions(agent=False), login="", host_key=key, tls={})
    with tarfile.open(fileobj=io.BytesIO(identity.identity_tar(files))) as tar:
        names = {name for name in tar.getnames() if name.startswith("etc/groundfault/")}
    assert {f"/{name}" for name in names} == set(at.OF_THE_LAB) - {f"{at.CONFIG}/identity-installed"}


def test_a_key_is_kept_and_known_hosts_names_the_port(tmp_path: Path) -> None:
    first = identity.kept_key(tmp_path / "key")
    assert identity.kept_key(tmp_path / "key") == first
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (
        identity.known_hosts([("127.0.0.1", 4001, first.public)]) == f"[127.0.0.1]:4001 {first.public}\n".encode()
    )


def test_addresses_and_ids_differ_between_nodes_and_labs() -> None:
    macs = {identity.mac(i, lan=lan) for i in range(1, 33) for lan in (True, False)}
    assert len(macs) == 64
    assert identity.machine_id("a", "w1") != identity.machine_id("b", "w1")
    assert len(identity.machine_id("a", "w1")) == 32


def test_ports_are_free_and_different() -> None:
    chosen = ports.choose(6)
    assert len(set(chosen)) == 6
    assert all(ports.is_free(port) for port in chosen)


def test_open_connections_are_seen_until_they_are_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.open_connections([port]) == 0
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            assert ports.open_connections([port]) == 2
            accepted.close()
        assert ports.open_connections([port]) == 0


def test_memory_is_refused_with_what_fits() -> None:
    memory.check(LabOptions(nodes=3, memory_mib=768), 3 * 1068)
    with pytest.raises(LabError, match="3204 MiB") as caught:
        memory.check(LabOptions(nodes=3, memory_mib=768), 3 * 1068 - 1)
    assert "--nodes 2" in caught.value.hint
    with pytest.raises(LabError) as caught:
        memory.check(LabOptions(nodes=1, memory_mib=4096), 2048)
    assert "--memory 1748" in caught.value.hint


def test_accelerator_without_a_device_needs_no_trial(tmp_path: Path) -> None:
    answer = accelerator(Path("/k"), Path("/i"), SilentProgress(), device=tmp_path / "kvm")
    assert answer.name == "tcg"
    assert "there is no" in answer.reason


def test_kvm_is_judged_with_the_newest_kernel_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = tmp_path / "kvm"
    gone = accelerating.accelerator_here(SilentProgress(), device)
    assert gone is not None and "there is no" in gone.reason
    device.touch()
    assert accelerating.accelerator_here(SilentProgress(), device) is None, "nothing to try it with"
    for age, image in ((20, "old"), (10, "new")):
        kernel = tmp_path / "groundfault" / "images" / image / "kernel"
        kernel.parent.mkdir(parents=True)
        kernel.touch()
        os.utime(kernel, (0, 1_000_000 - age))
    tried: list[tuple[Path, Path]] = []

    def trial(kernel: Path, initrd: Path) -> Accelerator:
        tried.append((kernel, initrd))
        return emulation("it hangs")

    monkeypatch.setattr(accelerating, "_try_kvm", trial)
    monkeypatch.setattr(accelerating, "_machine_key", lambda: "this")
    for _ in range(2):
        assert accelerating.accelerator_here(SilentProgress(), device) == emulation("it hangs")
    new = tmp_path / "groundfault" / "images" / "new"
    assert tried == [(new / "kernel", new / "initrd")], "once"


def test_a_trial_boots_the_images_kernel_and_dies_with_us() -> None:
    argv = trial_argv(Path("/k"), Path("/i"), Path("/c"))
    assert argv[:3] == ("setpriv", "--pdeathsig", "KILL")
    assert option(argv, "-kernel") == ["/k"]
    assert "groundfault.trial" in option(argv, "-append")[0]
    assert Accelerator(name="kvm", cpu_model="host", reason="").accel == "kvm"


def test_words_for_the_kernel_come_last() -> None:
    """Of two words for one setting the kernel takes the last."""
    wanted = replace(a_machine(), arguments=("lsm=lockdown,yama", "quiet"))
    (line,) = option(machine.argv(wanted, paused=False), "-append")
    assert line.endswith(" lsm=lockdown,yama quiet")
