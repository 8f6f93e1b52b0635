"""The exported image: what is put into its file system, its boot sectors, its box, and what is refused."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest

from labctl.errors import LabError, UsageError
from labctl.lab import export
from tests.unit.cli_world import World

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP1 somebody"


def test_the_archive_is_one_that_cpio_reads(tmp_path: Path) -> None:
    archive = export.cpio({"init": (b"#!/bin/sh\n", 0o755), "odd": (b"x", 0o644)})
    assert len(archive) % 4 == 0 and archive.startswith(b"070701")
    # The initramfs buffer format: each header names the length of what follows.
    at, names = 0, {}
    while True:
        size, name_size = int(archive[at + 54 : at + 62], 16), int(archive[at + 94 : at + 102], 16)
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        start = -(-(at + 110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            break
        names[name] = (int(archive[at + 14 : at + 22], 16), archive[start : start + size])
        at = -(-(start + size) // 4) * 4
    assert names == {"init": (0o100755, b"#!/bin/sh\n"), "odd": (0o100644, b"x")}


def test_the_boot_sectors() -> None:
    boot, core = bytes(range(256)) * 2, b"core" * 1000
    made = export.boot_sectors(boot, core, 8192)
    assert made[:440] == boot[:440] and made[510:512] == b"\x55\xaa" and made[512:] == core
    status, kind, first, sectors = struct.unpack("<B3xB3xII", made[446:462])
    assert (status, kind, first, sectors) == (0x80, 0x83, 2048, 8192)
    assert made[462:510] == bytes(48)
    with pytest.raises(LabError, match="does not fit"):
        export.boot_sectors(boot, bytes(2 << 20), 8192)


@pytest.fixture
def node_disk(tmp_path: Path) -> Path:
    """A file system with what a node image has of the paths that an export changes."""
    tree = tmp_path / "tree"
    for path in ("boot", "etc/ssh", "etc/systemd/system/multi-user.target.wants", "etc/systemd/network",
                 "etc/systemd/system/local-fs.target.wants", "etc/udev/rules.d", "root"):  # fmt: skip
        (tree / path).mkdir(parents=True)
    (tree / "boot/groundfault-initrd").write_bytes(b"old" * 5000)
    (tree / "etc/hostname").write_text("somebody\n")
    (tree / "etc/udev/rules.d/70-groundfault-net.rules").touch()
    (tree / "etc/systemd/system/systemd-networkd.service").symlink_to("/dev/null")
    disk = tmp_path / "disk.raw"
    mke2fs = shutil.which("mke2fs", path="/usr/sbin:/sbin:/usr/bin") or "mke2fs"
    subprocess.run((mke2fs, "-q", "-t", "ext4", "-d", str(tree), str(disk), "16M"), check=True)
    return disk


def dumped(disk: Path, request: str) -> str:
    debugfs = shutil.which("debugfs", path="/usr/sbin:/sbin:/usr/bin") or "debugfs"
    return subprocess.run((debugfs, "-R", request, str(disk)), capture_output=True, text=True, check=True).stdout


def test_a_node_becomes_a_machine_on_its_own(node_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "initrd").write_bytes(b"first")
    files = export.files_of(tmp_path / "initrd", KEY)
    export.change_filesystem(node_disk, files, tmp_path)
    assert dumped(node_disk, "cat /root/.ssh/authorized_keys") == f"{KEY}\n"
    assert dumped(node_disk, "cat /boot/groundfault-initrd").startswith("first070701")
    assert dumped(node_disk, "cat /etc/hostname") == "groundfault\n"
    assert "Mode:  0600" in dumped(node_disk, "stat /root/.ssh/authorized_keys")
    assert "Mode:  0700" in dumped(node_disk, "stat /root/.ssh")
    wanted = "/etc/systemd/system/multi-user.target.wants"
    assert "/usr/lib/systemd/system/systemd-networkd.service" in dumped(
        node_disk, f"stat {wanted}/systemd-networkd.service"
    )
    for gone in ("/etc/udev/rules.d/70-groundfault-net.rules", "/etc/systemd/system/systemd-networkd.service"):
        assert dumped(node_disk, f"stat {gone}") == ""
    for name in ("init", "groundfault-first-boot.service", "90-groundfault.network", "Vagrantfile"):
        assert export._guest(name)


def test_the_same_input_gives_the_same_bytes(node_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "initrd").write_bytes(b"first")
    other = tmp_path / "other.raw"
    shutil.copyfile(node_disk, other)
    for disk, place in ((node_disk, "a"), (other, "another")):
        (tmp_path / place).mkdir()
        export.change_filesystem(disk, export.files_of(tmp_path / "initrd", KEY), tmp_path / place)
    assert node_disk.read_bytes() == other.read_bytes()


def test_a_change_that_did_not_take_is_told(node_disk: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"/no/such/place is not as it should be afterwards"):
        export.change_filesystem(node_disk, {"/no/such/place": (b"x", 0o644)}, tmp_path)


def test_the_box(tmp_path: Path) -> None:
    (tmp_path / "box.img").write_bytes(b"disk")
    with tarfile.open(export.pack_box(tmp_path / "box.img", tmp_path / "made.box")) as box:
        assert box.getnames() == ["metadata.json", "Vagrantfile", "box.img"]
        metadata = box.extractfile("metadata.json")
        assert metadata and json.load(metadata) == {"provider": "libvirt", "format": "qcow2", "virtual_size": 5}
        assert {(one.mtime, one.uid) for one in box.getmembers()} == {(0, 0)}


def test_which_key_may_log_in(tmp_path: Path) -> None:
    assert export.first_key(None, "vagrant-libvirt").startswith("ssh-rsa AAAAB3")
    with pytest.raises(UsageError, match="nobody could log in without one"):
        export.first_key(None, "raw")
    file = tmp_path / "key.pub"
    file.write_text(f"{KEY}\n")
    assert export.first_key(file, "raw") == KEY
    for text in ("-----BEGIN OPENSSH PRIVATE KEY-----", f"{KEY}\n{KEY}", "hello"):
        file.write_text(text)
        with pytest.raises(UsageError, match="is no public SSH key"):
            export.first_key(file, "qcow2")
    with pytest.raises(UsageError, match="cannot be read"):
        export.first_key(tmp_path / "absent", "qcow2")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    with pytest.raises(UsageError, match="is there already"):
        export.check_target(tmp_path / "there")
    with pytest.raises(UsageError, match="nothing can be written"):
        export.check_target(tmp_path / "absent" / "file")


def test_the_command_refuses_before_it_builds(empty_world: World, tmp_path: Path) -> None:
    done = empty_world.run("image", "export", "--format", "raw", "--out", str(tmp_path / "x"))
    assert done.code == 64 and "--authorized-key: nobody could log in" in done.err
    assert empty_world.run("image", "export").code == 64
    assert (
        "is not one of 'vagrant-libvirt', 'qcow2', 'raw'"
        in empty_world.run("image", "export", "--format", "ova").err
    )
