"""Finding out what a disk is, and refusing each that must not be taken. Only looks.

Sources: Documentation/ABI/stable/sysfs-block (holders, ro, size, partitions), proc(5) for mounts and swaps,
wipefs(8) for what is on it, udev's rules for names that outlive a reboot.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node_agent.errors import Refusal
from node_agent.facts import parse_mountinfo
from node_agent.fault import Mount
from node_agent.host import Host, Reader
from node_agent.prepare.model import MIN_MIB, Request

KEPT = ("ext2", "ext3", "ext4", "xfs", "f2fs", "jfs", "vfat", "exfat")
"""File systems that live on one device and that nothing but a mount puts into use."""

_MEMBERS = {
    "LVM2_member": "an LVM physical volume", "LVM1_member": "an LVM physical volume", "swap": "swap space",
    "swsuspend": "a suspended system", "zfs_member": "a member of a ZFS pool", "bcache": "a bcache device",
    "ceph_bluestore": "a Ceph store", "crypto_LUKS": "an encrypted volume",
    "btrfs": "btrfs, which finds its devices by itself",
    "dos": "a partition table", "gpt": "a partition table", "PMBR": "a partition table",
}  # fmt: skip
_LINKS = ("wwn-", "nvme-eui", "nvme-", "scsi-", "ata-", "virtio-", "mmc-", "usb-", "md-uuid-")
_FREE_PERCENT = 10

OPEN_S = 5.0
"""How long a disk may be held open by programs that only look into it."""

_PAUSE_S = 0.05


@dataclass(frozen=True)
class Signature:
    """Something that has its mark on a disk."""

    kind: str
    uuid: str
    label: str


@dataclass(frozen=True)
class Disk:
    """A disk that may be taken. `source`: a name that outlives a reboot; `number`: major:minor."""

    path: str
    source: str
    number: str
    sectors: int
    signatures: tuple[Signature, ...]

    @property
    def filesystem(self) -> str:
        """What can be mounted of it; empty for nothing."""
        return next((one.kind for one in self.signatures if one.kind in KEPT), "")


Holders = Callable[[str], Sequence[str]]
"""Who has block device "major:minor" open: :func:`node_agent.host.holders.holders`."""


def wait(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether a condition becomes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def mounts_of(reader: Reader) -> tuple[Mount, ...]:
    """Everything mounted."""
    return parse_mountinfo(reader.read_text("/proc/self/mountinfo"))


def examine(host: Host, holders: Holders, request: Request) -> Disk:
    """The disk at `request.device`. Raises :class:`Refusal` with the reason and what would be allowed."""
    path = host.realpath(request.device)
    name = path.removeprefix("/dev/").replace("/", "!")
    folder = f"/sys/class/block/{name}"
    if not host.exists(path):
        raise _refused(request.device, "does not exist", _others(host))
    if not host.exists(f"{folder}/dev"):
        raise _refused(request.device, "is no disk", "a block device: a whole disk or a partition")
    _refuse_kind(host, request.device, name)
    number = _text(host, f"{folder}/dev")
    sectors = int(_text(host, f"{folder}/size") or 0)
    _refuse_use(host, holders, request.device, path, folder)
    if _text(host, f"{folder}/ro") != "0":
        raise _refused(request.device, "is read-only", "a disk that can be written")
    least = MIN_MIB[request.format]
    if sectors < least * 2048:
        raise _refused(request.device, f"is too small: {sectors / 2048:g} MiB", f"{least} MiB or more")
    source = _lasting_name(host, path)
    found = signatures(host, path)
    _refuse_content(request.device, found)
    _refuse_tables(host, request.device, path, found)
    if not source:
        raise _refused(
            request.device, "has no name below /dev/disk that outlives a reboot",
            "a disk with a serial number, or a partition with a PARTUUID",
        )  # fmt: skip
    return Disk(path, source, number, sectors, found)


def _text(reader: Reader, path: str) -> str:
    return reader.read_text(path).strip() if reader.exists(path) else ""


def _refused(device: str, what: str, allowed: str) -> Refusal:
    return Refusal(f"device: {device} {what}", field="device", allowed=allowed)


def _others(reader: Reader) -> str:
    names = [
        n for n in reader.listdir("/sys/class/block") if not n.startswith(("loop", "ram", "dm-", "zram", "sr"))
    ]
    return f"this node has: {', '.join(f'/dev/{name}' for name in names)}"


def _refuse_kind(reader: Reader, device: str, name: str) -> None:
    dm = _text(reader, f"/sys/class/block/{name}/dm/name")
    if dm:
        raise _refused(device, f"is the device-mapper device {dm} already", f"nothing to prepare: --disk {dm}")
    if name.startswith("loop"):
        raise _refused(device, "is a loop device, which is gone after a reboot", "--size makes a disk of a file")
    if name.startswith(("ram", "zram", "nbd", "sr", "fd", "ublkb")):
        raise _refused(device, "is no disk of this machine", "a disk or a partition")


def _refuse_use(host: Host, holders: Holders, device: str, path: str, folder: str) -> None:
    """Whatever uses it, its partitions or the disk that it is a part of."""
    parts = [n for n in host.listdir(folder) if host.exists(f"{folder}/{n}/partition")]
    numbers = {_text(host, f"{folder}/dev"): device}
    numbers |= {_text(host, f"{folder}/{part}/dev"): f"/dev/{part}" for part in parts}
    for mount in mounts_of(host):
        if mount.device in numbers:
            which = "" if numbers[mount.device] == device else f"partition {numbers[mount.device]} "
            if mount.target == "/":
                raise _refused(
                    device, f"holds the root file system {which}".rstrip(), "a disk that the system does not need"
                )
            raise _refused(device, f"{which}is mounted at {mount.target}", f"first: umount {mount.target}")
    for line in host.read_text("/proc/swaps").splitlines()[1:]:
        used = host.realpath(line.split()[0])
        if used == path or used.removeprefix("/dev/") in parts:
            raise _refused(device, f"is swap space in use ({used})", f"first: swapoff {used}")
    if parts:
        raise _refused(
            device, f"has partitions: {', '.join(parts)}", "one of its partitions, or a disk without any"
        )
    whole = host.realpath(f"{folder}/..") if host.exists(f"{folder}/partition") else folder
    for place in dict.fromkeys((folder, whole)):
        for name in host.listdir(f"{place}/holders"):
            raise _refused(device, f"is a part of {_holder(host, name)}", "a disk that nothing is built on")
    number = _text(host, f"{folder}/dev")
    if not wait(lambda: not holders(number), OPEN_S):  # udev looks into a disk that somebody has just written
        open_by = holders(number) or ("somebody who comes and goes",)
        raise _refused(device, f"is held open by {', '.join(open_by)}", "a disk that nobody has open")


def _holder(reader: Reader, name: str) -> str:
    dm = _text(reader, f"/sys/class/block/{name}/dm/name")
    uuid = _text(reader, f"/sys/class/block/{name}/dm/uuid")
    if uuid.startswith("LVM-"):
        return f"the LVM volume {dm}"
    if dm:
        return f"the device-mapper device {dm} (for a fault on that: --disk {dm})"
    return f"the RAID array {name}" if name.startswith("md") else f"the device {name}"


def signatures(host: Host, path: str) -> tuple[Signature, ...]:
    """What wipefs finds on a device, read from the disk: what its page cache holds may be older."""
    host.run(("blockdev", "--flushbufs", path))
    text = host.run(("wipefs", "--json", "--no-act", path)).strip()
    found = json.loads(text)["signatures"] if text else ()
    return tuple(Signature(s["type"], s.get("uuid") or "", s.get("label") or "") for s in found)


def _refuse_content(device: str, found: Sequence[Signature]) -> None:
    for one in found:
        if one.kind in KEPT:
            continue
        raid = one.kind.endswith("_raid_member")
        what = _MEMBERS.get(one.kind) or ("a member of a RAID array" if raid else one.kind)
        raise _refused(
            device, f"bears the mark of {what} ({one.kind})",
            f"an empty disk, or one with {', '.join(KEPT[:4])}; wipefs takes off a mark that is stale",
        )  # fmt: skip


def _refuse_tables(reader: Reader, device: str, path: str, found: Sequence[Signature]) -> None:
    """What would take the disk itself at the next boot, before its table is there."""
    for table, column in (("/etc/fstab", 0), ("/etc/crypttab", 1)):
        for line in _text(reader, table).splitlines():
            fields = line.partition("#")[0].split()
            if len(fields) > column and _means(reader, fields[column].strip('"'), path, found):
                raise _refused(
                    device, f"is named in {table} as {fields[column]}: the next boot would take it from there",
                    f"first take that line out of {table}",
                )  # fmt: skip


def _means(reader: Reader, word: str, path: str, found: Sequence[Signature]) -> bool:
    key, equals, value = word.partition("=")
    value = value.strip('"')
    if not equals:
        return word.startswith("/dev/") and reader.realpath(word) == path
    by: Mapping[str, set[str]] = {"UUID": {s.uuid for s in found}, "LABEL": {s.label for s in found}}
    if value in by.get(key, set()):
        return True
    link = f"/dev/disk/by-{key.lower()}/{value}"
    return reader.exists(link) and reader.realpath(link) == path


def _lasting_name(reader: Reader, path: str) -> str:
    """The best of udev's links to a device; empty where there is none."""
    by_id = [f"/dev/disk/by-id/{name}" for name in reader.listdir("/dev/disk/by-id")]
    ranked = [link for start in _LINKS for link in by_id if link.startswith(f"/dev/disk/by-id/{start}")]
    others = [f"/dev/disk/{kind}/{name}" for kind in ("by-partuuid", "by-path") for name in
              reader.listdir(f"/dev/disk/{kind}")]  # fmt: skip
    return next((link for link in (*ranked, *others) if reader.realpath(link) == path), "")


def check_room(host: Host, request: Request) -> None:
    """Refuse a file that is there, has no place, or would leave its file system nearly full."""
    folder = request.file.rpartition("/")[0] or "/"
    info = host.file_info(folder)
    if host.file_info(request.file) is not None:
        raise Refusal(f"file: {request.file} exists", field="file", allowed="a file that is not there yet")
    if info is None or info.kind != "directory":
        raise Refusal(f"file: there is no folder {folder}", field="file", allowed="a file in an existing folder")
    said = (host.query(("stat", "--file-system", "--format=%S %a %b %T", folder)) or "").split()
    if len(said) < 4:
        raise Refusal(f"file: the room in {folder} cannot be told", field="file", allowed="another folder")
    unit, free, total = (int(word) for word in said[:3])
    if said[3] not in ("ext2/ext3", "xfs"):
        raise Refusal(
            f"file: {folder} is on {said[3]}", field="file",
            allowed="a folder on ext4 or XFS, where allocated space stays where it is",
        )  # fmt: skip
    left = free * unit - request.size_mib * 2**20
    if left < total * unit * _FREE_PERCENT / 100:
        most = max(0, int((free - total * _FREE_PERCENT / 100) * unit / 2**20))
        raise Refusal(
            f"size_mib: {request.size_mib} MiB would leave less than {_FREE_PERCENT} % of {folder} free",
            field="size_mib", allowed=f"at most {most} MiB there",
        )  # fmt: skip


def check_mount(reader: Reader, target: str) -> None:
    """Refuse a place that is in use: data there would be hidden."""
    if any(m.target == target for m in mounts_of(reader)):
        raise Refusal(f"mount: something is mounted at {target}", field="mount", allowed="another folder")
    info = reader.file_info(target)
    if info is None:
        return
    if info.kind != "directory":
        raise Refusal(
            f"mount: {target} is a {info.kind}", field="mount", allowed="a folder that is empty or not there"
        )
    if reader.listdir(target):
        raise Refusal(
            f"mount: {target} is not empty", field="mount", allowed="a folder that is empty or not there"
        )
