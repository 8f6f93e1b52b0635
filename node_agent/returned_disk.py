"""A data disk that was away and is back: its device-mapper table leads to it again, and its file system is well.

A disk that is pulled out and put back gets another number, because its old one is held by the table above it: the
table goes on leading to a device that is dead for good. Which disk is the right one is told by what is on it: the
file system that is still mounted knows its UUID, and so does udev's record of the device above. Names and places
of disks change; a size alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from node_agent.errors import Refusal
from node_agent.facts import parse_mountinfo
from node_agent.fault import TAG_PREFIX, Mount
from node_agent.host import SECTOR, DmInfo, DmTarget, Host, Reader
from node_agent.host.mounting import Repair
from node_agent.steps.dm_names import holder_of, made_devices
from node_agent.steps.dm_tables import place_of

_DEPTH = 8
_NO_DISKS = ("dm-", "loop", "ram", "zram", "sr", "md", "nbd")


def repair_disk(host: Host, name: str, wanted: str) -> Repair:
    """Bring data disk `wanted` back to work: a device-mapper name or mount point; empty: the only mounted one, or
    where none is mounted, the only one.

    `name` is under which the repair is remembered: the same again tells the same losses. A disk that is well is
    not touched. Raises :class:`Refusal` where the disk is not back (yet), or cannot be told from another.
    """
    mounts = parse_mountinfo(host.read_text("/proc/self/mountinfo"))
    disk, mount = _find(host, mounts, wanted)
    done = list(_lead_back(host, mounts, disk, mount))
    made = made_devices(host)
    if any(holder_of(target, made) for target in host.dm.table(disk.name)):
        return Repair((*done, f"an injection stands on {disk.name}; its end looks after the file system"), ())
    begun = host.filesystems.begun(name)
    mounted = host.filesystems.mounted(mount.target) if mount else None
    if begun or (mounted and host.filesystems.ailments(mounted)):
        again = begun or mounted
        assert again is not None
        done += host.filesystems.repair(name, again).done
    return Repair(tuple(done), host.filesystems.lost(name))


def _find(reader: Reader, mounts: Iterable[Mount], wanted: str) -> tuple[DmInfo, Mount | None]:
    disks = [d for d in reader.dm.list() if not d.name.startswith(TAG_PREFIX)]
    on = {d.name: next((m for m in mounts if m.device == d.number), None) for d in disks}
    where = wanted.removeprefix("/dev/mapper/").rstrip("/")
    for disk in disks:
        mount = on[disk.name]
        if where and where in (disk.name, mount.target if mount else disk.name):
            return disk, mount
    likely = [d for d in disks if on[d.name]] or disks  # an operator may have unmounted a disk that is away
    if wanted or len(likely) != 1:
        raise Refusal(
            f"disk: {wanted!r} is no data disk of this node" if wanted else f"disk: which of {len(likely)}?",
            field="disk",
            allowed=f"one of: {', '.join(d.name for d in disks) or 'none'}",
        )
    return likely[0], on[likely[0].name]


def _lead_back(host: Host, mounts: Iterable[Mount], disk: DmInfo, mount: Mount | None) -> Iterable[str]:
    """Swap every table that leads to the dead device below a disk."""
    below = _bottom(host, disk.name)
    if below is None or _lives(host, below[0]):
        return
    dead, begin = below
    users = [(d, host.dm.table(d.name)) for d in host.dm.list()]
    users = [(d, table) for d, table in users if any(dead in target.args.split() for target in table)]
    needed = max(
        int(place) + target.length
        for _, table in users
        for target in table
        for device, place in [(*target.args.split(), "0")[:2]]
        if device == dead and place.isdigit()
    )
    number = _returned(host, mounts, _uuid(host, disk, mount), begin, needed)
    for device, table in users:
        host.dm.swap(device.name, [_led(target, dead, number) for target in table])
        yield f"the table of {device.name} leads to {number} instead of {dead}, which is gone"


def _led(target: DmTarget, dead: str, number: str) -> DmTarget:
    words = (number if word == dead else word for word in target.args.split())
    return DmTarget(target.start, target.length, target.kind, " ".join(words))


def _bottom(reader: Reader, name: str) -> tuple[str, int] | None:
    """The device that the first sector of a disk lies on, and its sector there, through all linear layers."""
    names = {d.number: d.name for d in reader.dm.list()}
    sector = 0
    for _ in range(_DEPTH):
        line = next((t for t in reader.dm.table(name) if t.start <= sector < t.start + t.length), None)
        if line is None or line.kind != "linear":
            return None
        number, sector = place_of(line, sector)
        if number not in names:
            return number, sector
        name = names[number]
    return None


def _lives(reader: Reader, number: str) -> bool:
    return reader.exists(f"/sys/dev/block/{number}")


def _returned(reader: Reader, mounts: Iterable[Mount], uuid: str, begin: int, needed: int) -> str:
    """The one unused disk with a file system at sector `begin`. Raises :class:`Refusal`."""
    taken = {m.device for m in mounts}
    found = []
    for number in reader.listdir("/sys/dev/block"):
        path = reader.realpath(f"/sys/dev/block/{number}")
        name = path.rpartition("/")[2]
        if name.startswith(_NO_DISKS) or number in taken or reader.listdir(f"{path}/holders"):
            continue
        fits = reader.disk.size_sectors(number) >= needed
        if fits and reader.filesystems.identity_on(f"/dev/{name}", begin * SECTOR) == uuid:
            found.append(number)
    if len(found) != 1:
        which = f"{len(found)} unused disks have" if found else "no unused disk has"
        raise Refusal(f"disk: {which} the file system {uuid}", field="disk", allowed="the disk put back")
    return found[0]


def _uuid(reader: Reader, disk: DmInfo, mount: Mount | None) -> str:
    """The UUID of the file system on a disk, dead or not. Raises :class:`Refusal` where nothing tells it."""
    uuid = reader.filesystems.identity(mount.target) if mount else ""
    path = f"/run/udev/data/b{disk.number}"
    lines = reader.read_text(path).splitlines() if not uuid and reader.exists(path) else []
    told = (line.removeprefix("E:ID_FS_UUID=") for line in lines if line.startswith("E:ID_FS_UUID="))
    uuid = uuid or next(told, "")
    if not uuid:
        raise Refusal(f"disk: nothing tells which disk {disk.name} was", field="disk", allowed="a mounted disk")
    return uuid
