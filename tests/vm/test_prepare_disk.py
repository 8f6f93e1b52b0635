"""Putting disks of a real kernel under device mapper and back: bytes, a fault, refusals, cuts, a reboot."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.lab import footprint as at
from tests import user
from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json, until

pytestmark = [pytest.mark.vm, pytest.mark.timeout(900)]

SPARE_MIB, OTHER_MIB, TINY_MIB = 20, 64, 8
HOLDER = "systemd-run --quiet --unit=holder --property=Type=exec"
"""Runs a program that has begun, with what it was given open, when this returns."""


@dataclass(frozen=True)
class SpareNode:
    """A node with disks that nothing uses: sdb, sdc and a tiny sdd, in whatever order the kernel named them."""

    lab: LabUnderTest
    name: str

    def sh(self, script: str, check: bool = True, stdin: bytes | None = None) -> str:
        """Standard output of a script on the node."""
        if stdin is None:
            return ssh(self.lab.node(self.name), script, check=check).stdout.strip()
        argv = (sys.executable, "-m", "labctl", "--lab", user.LAB, "ssh", self.name, "--", "sh", "-c", script)
        return (
            subprocess.run(argv, input=stdin, capture_output=True, timeout=120, check=check)
            .stdout.decode()
            .strip()
        )

    def prepare(self, *words: str, status: int = 0) -> str:
        """`labctl node prepare-disk`, and all that it says."""
        done = labctl("node", "prepare-disk", self.name, *words, status=status)
        return done.stdout + done.stderr

    def disk(self, serial: str) -> str:
        """The kernel's name of a spare disk."""
        return self.sh(f"readlink -f /dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}")

    def filled(self) -> str:
        """The spare disk, full of random bytes, with a file system of somebody's and a file in it."""
        disk = self.disk("spare")
        self.sh(f"head -c {SPARE_MIB}M /dev/urandom > {disk}; mkfs.ext4 -q -F -L mine {disk}; mount {disk} /mnt; "
                f"head -c 1M /dev/urandom > /mnt/x; umount /mnt")  # fmt: skip
        return disk

    def prepared(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = labctl_json("node", "prepare-disk", self.name, status=None)["disks"]
        return found

    def boot_id(self) -> str:
        return self.sh("cat /proc/sys/kernel/random/boot_id", check=False)


@pytest.fixture(scope="module")
def node(lab: LabUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpareNode]:
    """The last node, with three spare disks plugged in; as it was afterwards."""
    spare = SpareNode(lab, lab.nodes[-1].name)
    folder = tmp_path_factory.mktemp("disks")
    with lab.provider.qmp(spare.name) as qmp:
        for name, mib in (("spare", SPARE_MIB), ("other", OTHER_MIB), ("tiny", TINY_MIB)):
            _plug(qmp, folder / name, name, mib)
    until("udev knows the disks", lambda: spare.sh("ls /dev/disk/by-id").count("HARDDISK_") >= 4)
    yield spare
    lab.reset()


def _plug(qmp: Any, file: Path, name: str, mib: int) -> None:
    with file.open("wb") as handle:
        handle.truncate(mib << 20)
    below = {"driver": "file", "filename": str(file)}
    qmp.execute("blockdev-add", driver="raw", node_name=name, file=below)
    qmp.execute("device_add", driver="scsi-hd", drive=name, id=f"{name}dev", bus="scsi0.0", serial=name)


def test_the_bytes_of_a_disk_are_the_same_before_meanwhile_and_after(node: SpareNode) -> None:
    disk = node.filled()
    node.sh(f"cp {disk} /run/copy")
    assert "HARDDISK_spare (20 MiB); next: " in node.prepare("--name", "spare", "--device", disk)
    assert (
        node.sh("dmsetup table spare") == f"0 {SPARE_MIB * 2048} linear {node.sh(f'lsblk -dno MAJ:MIN {disk}')} 0"
    )
    node.sh("cmp /run/copy /dev/mapper/spare")
    assert "it was already" in node.prepare("--name", "spare", "--device", disk)
    assert "is taken away" in node.prepare("--undo", "--name", "spare")
    assert "is not prepared" in node.prepare("--undo", "--name", "spare")
    node.sh(f"cmp /run/copy {disk} && rm /run/copy")
    assert (
        node.sh(f"dmsetup ls | grep -c spare; ls {at.DISKS} {at.DISKS_UNIT} {at.DISKS_WANTED}", check=False) == "0"
    )


def test_a_fault_bites_in_it_and_it_is_no_residue(node: SpareNode) -> None:
    disk = node.filled()
    node.prepare("--name", "spare", "--device", disk, "--mount", "/srv/spare")
    file = node.sh("sha256sum < /srv/spare/x")
    planted = labctl_json("inject", "latent_sector_error", "--node", node.name, "--disk", "spare", "--for", "5m")
    assert "Input/output error" in node.sh("cat /srv/spare/x 2>&1 >/dev/null", check=False)
    refused = node.prepare("--undo", "--name", "spare", status=64)
    assert f"injections are live on this node: {planted['id']}" in refused
    labctl("recover", planted["id"])
    assert node.sh("sha256sum < /srv/spare/x") == file
    assert labctl("node", "residue", node.name).stdout == f"{node.name}: no residue, everything is as it was\n"

    node.sh(f"{HOLDER} --working-directory=/srv/spare sleep 600")
    busy = node.prepare("--undo", "--name", "spare", status=64)
    assert "/srv/spare is in use" in busy
    assert [d["problem"] for d in node.prepared()] == [""], "still as it was"
    node.sh("systemctl stop holder")
    assert "disks are under device mapper: spare" in labctl("node", "remove", node.name, status=64).stderr
    node.prepare("--undo", "--name", "spare")
    assert node.sh("test -e /srv/spare; echo $?") == "1"
    assert labctl("node", "residue", node.name).stdout == f"{node.name}: no residue, everything is as it was\n"


def _lvm() -> bytes:
    """An LVM2 label in the second sector (lib/format_text/layout.h of LVM2)."""
    body = struct.pack("<I8s32sQ", 32, b"LVM2 001", b"0123456789abcdefghijklmnopqrstuv", OTHER_MIB << 20)
    body = body.ljust(492, b"\0")
    crc = zlib.crc32(body, 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
    return bytes(512) + b"LABELONE" + struct.pack("<QI", 1, crc) + body


def _raid() -> bytes:
    """An md superblock of version 1.2 at 4 KiB (include/uapi/linux/raid/md_p.h)."""
    block = bytearray(256)
    struct.pack_into("<4I16s", block, 0, 0xA92B4EFC, 1, 0, 0, bytes(range(16)))
    struct.pack_into("<Q", block, 0x90, 8)
    total = sum(struct.unpack("<64I", block))
    struct.pack_into("<I", block, 0xD8, (total + (total >> 32)) & 0xFFFFFFFF)
    return bytes(4096) + bytes(block)


@pytest.mark.thorough
def test_what_is_in_use_or_somebody_elses_is_refused(node: SpareNode) -> None:
    disk, tiny = node.disk("other"), node.disk("tiny")

    def refused(device: str, reason: str, before: str = "", stdin: bytes | None = None) -> None:
        """`before` ends what the case before has begun, and begins this one."""
        if before:
            node.sh(f"set -e; {before}", stdin=stdin)
        said = node.prepare("--name", "other", "--device", device, status=64)
        assert reason in said, said
        assert said.count("error: ") == said.count("hint: ") == 1, said

    refused("/dev/vda", "holds the root file system")
    refused("/dev/sda", "is a part of the device-mapper device data")
    refused("/dev/mapper/data", "is the device-mapper device data already")
    refused("/dev/nowhere", "does not exist")
    refused("/dev/zero", "is no disk")
    refused(tiny, f"is too small: {TINY_MIB} MiB")
    clear = f"wipefs --all --quiet {disk}"
    cases = (
        ("is mounted at /mnt", f"mkfs.ext4 -q {disk}; mount {disk} /mnt", f"umount /mnt; {clear}"),
        ("is swap space in use", f"mkswap -q {disk}; swapon {disk}", f"swapoff {disk}"),
        ("the mark of swap space", "true", clear),
        ("a part of the LVM volume vg-lv", f"dmsetup create vg-lv --uuid LVM-abc --table '0 2048 linear {disk} 0'",
         "dmsetup remove vg-lv"),
        ("is read-only", f"blockdev --setro {disk}", f"blockdev --setrw {disk}"),
        ("is held open by process", f"{HOLDER} --property=StandardInput=file:{disk} sleep 600",
         "systemctl stop holder"),
        (f"is named in /etc/fstab as {disk}", f"echo '{disk} /x ext4 noauto 0 0' >> /etc/fstab",
         "sed -i /noauto/d /etc/fstab"),
    )  # fmt: skip
    end = "true"
    for reason, begin, after in cases:
        refused(disk, reason, f"{end}; {begin}")
        end = after
    refused(disk, "the mark of an LVM physical volume", f"{end}; cat > {disk}", stdin=_lvm())
    refused(disk, "the mark of a member of a RAID array", f"{clear}; cat > {disk}", stdin=_raid())
    table = "printf 'label: gpt\\n,40M\\n'"
    refused(disk, "has partitions: ", f"{clear}; {table} | sfdisk --quiet {disk}; udevadm settle")
    first = f"{disk}1"
    said = node.prepare("--name", "other", "--device", first, "--format", "ext4")
    assert "-part1" in said
    assert "(40 MiB)" in said
    assert "is prepared as other" in node.prepare("--name", "b", "--device", first, status=64)
    node.prepare("--undo", "--name", "other")
    assert "is too small" in node.prepare("--name", "other", "--device", first, "--format", "xfs", status=64)
    kept = node.prepare("--name", "other", "--device", first, "--format", "ext4", status=64)
    assert "holds ext4 (other)" in kept
    assert "--yes-erase destroys it" in kept
    node.sh(f"wipefs --all --quiet {first} {disk}; udevadm settle")


@pytest.mark.thorough
def test_half_prepared_two_at_once_and_after_a_reboot(node: SpareNode) -> None:
    disk = node.filled()
    on_disk = ("--name", "spare", "--device", disk, "--mount", "/srv/spare")
    on_file = ("--name", "image", "--size", "20M")
    assert "would leave less than 10 %" in node.prepare("--name", "image", "--size", "100G", status=64)

    # The agent is killed while the file system is made.
    node.sh("printf '#!/bin/sh\\ntouch /run/began\\nexec sleep 600\\n' > /run/slow; chmod 755 /run/slow; "
            "mount --bind /run/slow /usr/sbin/mkfs.ext4")  # fmt: skip
    argv = (sys.executable, "-m", "labctl", "--lab", user.LAB, "node", "prepare-disk", node.name, *on_file)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asking:
        until("mkfs has begun", lambda: node.sh("test -e /run/began && echo yes", check=False) == "yes")
        node.sh("systemctl kill --signal KILL groundfault-agent; umount /usr/sbin/mkfs.ext4")
        assert asking.wait(timeout=60) != 0
    until("the agent is back", lambda: labctl("node", "facts", node.name, status=None).returncode == 0)
    (half,) = node.prepared()
    assert half["problem"] == "preparing was cut short: the same command again ends it"

    # The same command, twice at once: one finishes it.
    pair = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=300)[0] for one in pair]
    assert sorted("it was already" in text for text in said) == [False, True], said
    assert node.sh("losetup -nO BACK-FILE | sort | uniq -c").split() == ["1", f"{at.STATE}/image.img"]
    assert node.sh("losetup -nO DIO").strip() == "1"

    node.prepare(*on_disk)
    node.sh("head -c 1M /dev/urandom > /srv/image/y; sync")
    before = node.sh("sha256sum /srv/image/y /srv/spare/x")
    tables = node.sh("dmsetup table spare | cut -d' ' -f1-3")
    boot = node.boot_id()
    with node.lab.provider.qmp(node.name) as qmp:
        qmp.execute("set-action", reboot="reset")
        qmp.execute("system_reset")
    until("it has booted", lambda: node.boot_id() not in ("", boot), within_s=240)
    until("the agent is back", lambda: labctl("node", "facts", node.name, status=None).returncode == 0)
    assert [(d["name"], d["problem"]) for d in node.prepared()] == [("image", ""), ("spare", "")]
    assert node.sh("sha256sum /srv/image/y /srv/spare/x") == before
    assert node.sh("dmsetup table spare | cut -d' ' -f1-3") == tables
    assert node.sh("systemctl is-active groundfault-disks", check=False) == "active"

    node.prepare("--undo", "--name", "image")
    node.prepare("--undo", "--name", "spare")
    left = node.sh(f"dmsetup ls | grep -v ^data; losetup -n; ls {at.STATE}/image.img {at.DISKS} {at.DISKS_UNIT} "
                   f"{at.DISKS_WANTED} /srv/image /srv/spare 2>/dev/null", check=False)  # fmt: skip
    assert left == ""
    assert labctl("node", "residue", node.name).stdout == f"{node.name}: no residue, everything is as it was\n"
