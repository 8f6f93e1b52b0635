"""The node image as a disk that boots by itself, for other people's hypervisors: raw, qcow2, or a Vagrant box.

No root is needed and nothing is mounted: debugfs changes the file system, and the boot loader is two pieces of
GRUB at fixed places. The same node image and key give the same file, byte for byte.
"""

from __future__ import annotations

import json
import os
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from labctl import paths
from labctl.errors import LabError, UsageError
from labctl.lab.bundle import add_file
from labctl.lab.files import locked, scratch
from labctl.lab.image import Image
from labctl.lab.model import ExportFormat
from labctl.lab.tools import need, run
from labctl.progress import Progress

SUFFIX: Mapping[ExportFormat, str] = {"vagrant-libvirt": "box", "qcow2": "qcow2", "raw": "raw"}

SECTOR = 512
FIRST_SECTOR = 2048
"""Where the partition begins; the boot loader is before it."""

BOX_GIB = 5
"""The size of the disk: the 4 GiB of the node image's file system, and the boot loader before it."""

GRUB = Path("/usr/lib/grub/i386-pc")
_GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "linux")
_LINE = (
    "console=tty0 console=ttyS0 rw quiet mitigations=off fsck.mode=skip systemd.show_status=0"
    " systemd.firstboot=off random.trust_cpu=on"
)
_GRUB_SCRIPT = f"""set root=(hd0,msdos1)
linux /boot/groundfault-kernel {_LINE}
initrd /boot/groundfault-initrd
boot
"""

VAGRANT_KEY = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAABIwAAAQEA6NF8iallvQVp22WDkTkyrtvp9eWW6A8YVr+kz4TjGYe7gHzIw+niNltGEFHzD8+v"
    "1I2YJ6oXevct1YeS0o9HZyN1Q9qgCgzUFtdOKLv6IedplqoPkcmF0aYet2PkEDo3MlTBckFXPITAMzF8dJSIFo9D8HfdOV0IAdx4"
    "O7PtixWKn5y2hMNG0zQPyUecp4pzC6kivAIhyfHilFR61RGL+GPXQ2MWZWFYbAGjyiYJnAmCP3NOTd0jMZEnDkbUvxhMmBYSdETk"
    "1rRgm+R4LOzFUGaHqHDLKLX+FIPKcF96hrucXzcWyLbIbEgE98OHlnVYCzRdK8jlqm8tehUc9c9WhQ=="
)
"""What Vagrant logs in with first, to put a key of its own in its place (Vagrant, keys/vagrant.pub)."""

_UNITS = "/etc/systemd/system"
_REMOVED = (
    "/boot/groundfault-initrd",
    # The lab's own machines find their cards and their data disk by these; the install brings what others need.
    "/etc/udev/rules.d/70-groundfault-net.rules",
    f"{_UNITS}/local-fs.target.wants/groundfault-data.service",
    f"{_UNITS}/systemd-networkd.service",
    f"{_UNITS}/systemd-networkd.socket",
)
_WANTED = (
    ("systemd-networkd.service", "/usr/lib/systemd/system/systemd-networkd.service"),
    ("groundfault-first-boot.service", "../groundfault-first-boot.service"),
)
_EPOCH = "1700000000"
"""The time of what is changed in the file system: a constant, so that the result depends on the input only."""


def _guest(name: str) -> bytes:
    return resources.files("labctl.lab").joinpath("guest", "export", name).read_bytes()


def first_key(given: Path | None, wanted: ExportFormat) -> str:
    """The public key that may log in as root at first. Raises :class:`UsageError`."""
    if given is None:
        if wanted == "vagrant-libvirt":
            return VAGRANT_KEY
        raise UsageError("--authorized-key: nobody could log in without one", "the path of a public SSH key")
    try:
        text = given.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--authorized-key: {given} cannot be read: {error}") from None
    if "PRIVATE KEY" in text or "\n" in text or not text.startswith(("ssh-", "ecdsa-", "sk-")):
        raise UsageError(f"--authorized-key: {given} is no public SSH key", "one line, such as id_ed25519.pub has")
    return text


def check_target(out: Path) -> Path:
    """The absolute path of the result. Raises :class:`UsageError` where it cannot be written."""
    target = out.expanduser().absolute()
    if target.exists():
        raise UsageError(f"--out: {out} is there already", "another name, or delete it first")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"--out: nothing can be written to {target.parent}")
    return target


def export_image(image: Image, wanted: ExportFormat, key: str, target: Path, progress: Progress) -> None:
    """Write a disk that boots by BIOS from virtio, or a box of it, to `target`. The image was built without agent.

    Raises :class:`LabError` where a tool is missing or fails.
    """
    need("qemu-img", "debugfs", "e2fsck", "grub-mkimage")
    if not (GRUB / "boot.img").is_file():
        raise LabError(f"there is no {GRUB}/boot.img on this machine", "apt-get install grub-pc-bin")
    directory = paths.cache_dir() / "exports"
    with locked(directory / "lock", "an export", 1800.0, progress.note), scratch(directory) as work:
        with progress.task(f"exporting the node image as {wanted}") as task:
            task.update("file system")
            change_filesystem(_as_raw(image.disk, work / "fs.raw"), files_of(image.initrd, key), work)
            task.update("boot loader")
            disk = _whole_disk(work)
            (work / "fs.raw").unlink()
            task.update("writing")
            done = disk if wanted == "raw" else _as_qcow2(disk, work / "box.img")
            if wanted == "vagrant-libvirt":
                done = pack_box(done, work / "done.box")
            _arrive(done, target)


def files_of(initrd: Path, key: str) -> dict[str, tuple[bytes, int]]:
    """What the file system gets, by path, each with its mode."""
    return {
        # The kernel unpacks one archive after the other: the later /init is the one that stays.
        "/boot/groundfault-initrd": (initrd.read_bytes() + cpio({"init": (_guest("init"), 0o755)}), 0o644),
        f"{_UNITS}/groundfault-first-boot.service": (_guest("groundfault-first-boot.service"), 0o644),
        "/etc/systemd/network/90-groundfault.network": (_guest("90-groundfault.network"), 0o644),
        "/etc/hosts": (b"127.0.0.1 localhost\n::1 localhost ip6-localhost\n", 0o644),
        "/etc/resolv.conf": (b"", 0o644),
        "/etc/hostname": (b"groundfault\n", 0o644),
        "/root/.ssh/authorized_keys": (f"{key}\n".encode(), 0o600),
    }


def cpio(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """An archive in the format `newc` (initramfs buffer format, Linux documentation), four-byte aligned."""
    out = bytearray()
    entries = [(name, 0o100000 | mode, content) for name, (content, mode) in sorted(files.items())]
    for number, (name, mode, content) in enumerate((*entries, ("TRAILER!!!", 0, b"")), 1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + content
        out += bytes(-len(out) % 4)
    return bytes(out)


@dataclass(frozen=True)
class _Change:
    """Files of the host to be written, and the script that does it."""

    sources: tuple[tuple[Path, bytes], ...]
    script: str


def _planned(files: Mapping[str, tuple[bytes, int]], there: Sequence[str], work: Path) -> _Change:
    """The script for debugfs. `there`: which of the paths exist; it complains of what is not."""
    lines = [f"rm {path}" for path in there]
    lines += ["mkdir /root/.ssh"]  # which complains where there is one, to nobody
    sources = []
    for number, (path, (content, mode)) in enumerate(sorted(files.items())):
        source = work / f"file-{number}"
        sources.append((source, content))
        lines += [f"write {source} {path}", f"sif {path} mode 0{0o100000 | mode:o}"]
        lines += [f"sif {path} {owner} 0" for owner in ("uid", "gid")]
    lines += ["sif /root/.ssh mode 040700"]
    lines += [f"symlink {_UNITS}/multi-user.target.wants/{name} {target}" for name, target in _WANTED]
    return _Change(tuple(sources), "\n".join(lines) + "\n")


def change_filesystem(disk: Path, files: Mapping[str, tuple[bytes, int]], work: Path) -> None:
    """Make the file system of a lab node one of a machine on its own. Raises :class:`LabError`."""
    if " " in str(work):
        raise LabError(f"the cache directory {work} has a space in its name", "set XDG_CACHE_HOME")
    there = [path for path in dict.fromkeys((*_REMOVED, *files)) if _stat(disk, path)]
    change = _planned(files, there, work)
    for source, content in change.sources:
        source.write_bytes(content)
    (work / "script").write_text(change.script)
    _debugfs(disk, "-w", "-f", str(work / "script"))
    # It ends with 0 whatever happened, so the result is looked at.
    wrong = [path for path in there if path not in files and _stat(disk, path)]
    wrong += [path for path, (content, mode) in files.items() if not _is(_stat(disk, path), len(content), mode)]
    wrong += [path for path in _links() if "Type: symlink" not in _stat(disk, path)]
    if wrong:
        raise LabError(f"changing the exported file system: {wrong[0]} is not as it should be afterwards")
    run(("e2fsck", "-f", "-n", str(disk)), "checking the exported file system", timeout=300)


def _links() -> tuple[str, ...]:
    return tuple(f"{_UNITS}/multi-user.target.wants/{name}" for name, _ in _WANTED)


def _stat(disk: Path, path: str) -> str:
    """What debugfs says of a path; empty where there is nothing."""
    said = _debugfs(disk, "-R", f"stat {path}")
    return said if "Inode:" in said else ""


def _is(stat: str, size: int, mode: int) -> bool:
    words = " ".join(stat.split())
    return "Type: regular" in words and f"Mode: 0{mode:o}" in words and f" Size: {size} " in words


def _debugfs(disk: Path, *argv: str) -> str:
    env = {**os.environ, "E2FSPROGS_FAKE_TIME": _EPOCH, "DEBUGFS_PAGER": "cat", "PAGER": "cat"}
    return run(("debugfs", *argv, str(disk)), "changing the exported file system", timeout=300, env=env)


def _as_raw(disk: Path, target: Path) -> Path:
    argv = ("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(disk), str(target))
    run(argv, "unpacking the node image", timeout=600)
    return target


def _as_qcow2(disk: Path, target: Path) -> Path:
    argv = ("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", str(disk), str(target))
    run(argv, "compressing the exported image", timeout=1800)
    return target


def _whole_disk(work: Path) -> Path:
    """Boot loader, partition table and the file system, at their places."""
    disk, inside = work / "disk.raw", work / "fs.raw"
    size = inside.stat().st_size
    with disk.open("wb") as out:
        out.write(boot_sectors((GRUB / "boot.img").read_bytes(), _core(work), size // SECTOR))
        out.truncate(BOX_GIB << 30)
    place = f"driver=raw,offset={FIRST_SECTOR * SECTOR},size={size},file.driver=file,file.filename={disk}"
    run(
        ("qemu-img", "convert", "-n", "-f", "raw", str(inside), "--target-image-opts", place),
        "writing the exported disk",
        timeout=600,
    )
    return disk


def _core(work: Path) -> bytes:
    script = work / "grub.cfg"
    script.write_text(_GRUB_SCRIPT)
    target = ("-O", "i386-pc", "-c", str(script), "-p", "(hd0,msdos1)/boot", "-o", str(work / "core.img"))
    run(("grub-mkimage", *target, *_GRUB_MODULES), "making the boot loader", timeout=120)
    return (work / "core.img").read_bytes()


def boot_sectors(boot: bytes, core: bytes, sectors: int) -> bytes:
    """What is before the partition: GRUB's first sector with a partition table in it, and its core right behind.

    That is where both look for it unless they are told otherwise (GRUB manual, "BIOS installation"; the block list
    of core.img begins at sector 2 in what grub-mkimage makes).
    """
    if len(core) > (FIRST_SECTOR - 1) * SECTOR:
        raise LabError("the boot loader does not fit before the partition")
    # An entry: bootable, three bytes of begin and end that nobody reads, the type (Linux), begin, length.
    entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", FIRST_SECTOR, sectors)
    table = b"gfex" + bytes(2) + entry + bytes(48) + b"\x55\xaa"
    return boot[:440] + table + core


def pack_box(disk: Path, target: Path) -> Path:
    """A Vagrant box for libvirt: https://vagrant-libvirt.github.io/vagrant-libvirt/boxes.html"""
    metadata = {"provider": "libvirt", "format": "qcow2", "virtual_size": BOX_GIB}
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        add_file(tar, "metadata.json", json.dumps(metadata).encode() + b"\n", 0o644)
        add_file(tar, "Vagrantfile", _guest("Vagrantfile"), 0o644)
        entry = tarfile.TarInfo("box.img")
        entry.size, entry.mode = disk.stat().st_size, 0o644
        with disk.open("rb") as content:
            tar.addfile(entry, content)
    return target


def _arrive(done: Path, target: Path) -> None:
    """Put the result in place, also on another file system, whole or not at all."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        # qemu-img leaves holes as holes, which a plain copy would fill.
        argv = ("cp", "--sparse=always", "--reflink=auto", str(done), str(partial))
        run(argv, f"writing {target}", timeout=1800)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
