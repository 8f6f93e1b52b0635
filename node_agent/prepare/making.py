"""Bringing a recorded disk up and taking it down. Both can be done again after being cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from node_agent.errors import ConflictError, Refusal
from node_agent.host import CommandError, DmTarget, Host, Reader
from node_agent.prepare.looking import OPEN_S, Holders, mounts_of, wait
from node_agent.prepare.model import Prepared

MKFS_S = 1800.0
_LAZY_ABOVE_SECTORS = 64 << 21
"""Above 64 GiB mkfs.ext4 leaves inode tables to the kernel's own thread; below, nothing writes by itself later."""

_LINK_S = 5.0
_BUSY = "close what is there, then again"


def node_of(record: Prepared) -> str:
    """The path that people use."""
    return f"/dev/mapper/{record.name}"


def base_of(reader: Reader, record: Prepared) -> str:
    """The device below as it is called now; empty where it is not there."""
    if record.kind == "file":
        return next((loop.path for loop in reader.loop.list() if loop.backing == record.source), "")
    return reader.realpath(record.source) if reader.exists(record.source) else ""


def table_of(reader: Reader, record: Prepared, base: str) -> tuple[DmTarget, ...]:
    """The one line that is the disk. Raises :class:`Refusal` where another disk has its name."""
    folder = f"/sys/class/block/{base.removeprefix('/dev/')}"
    sectors = int(reader.read_text(f"{folder}/size"))
    if sectors != record.sectors:
        raise Refusal(
            f"{record.source} has {sectors} sectors and had {record.sectors}: it is another disk",
            field="device", allowed="the disk that was prepared",
        )  # fmt: skip
    return (DmTarget(0, sectors, "linear", f"{reader.read_text(f'{folder}/dev').strip()} 0"),)


def problem(reader: Reader, record: Prepared) -> str:
    """Why a prepared disk is not up; empty where it is."""
    if record.state != "ready":
        return f"{record.state} was cut short: the same command again ends it"
    info = reader.dm.info(record.name)
    if info is None:
        there = record.kind == "file" or base_of(reader, record)
        return "it is not there" if there else f"{record.source} is not there"
    if record.mount and not any(m.device == info.number and m.target == record.mount for m in mounts_of(reader)):
        return f"it is not mounted at {record.mount}"
    return ""


def bring_up(host: Host, record: Prepared, erase: bool = False) -> bool:
    """Loop device, table, links, file system the first time, mount. True where something was to be done.

    Raises OSError, CommandError or an AgentError; what was done stays.
    """
    if not problem(host, record):
        return False
    if record.kind == "file" and not base_of(host, record):
        host.loop.attach(record.source, direct_io=True)
    base = base_of(host, record)
    if not base:
        raise Refusal(f"{record.source} is not there", field="device", allowed="is the disk plugged in?")
    if host.dm.info(record.name) is None:  # one that is there may bear faults in its table
        host.dm.create(record.name, table_of(host, record, base), public=True)
    _link(host, record)
    if record.format and record.state == "preparing":
        _format(host, record, erase)
    if record.mount and not _mounted(host, record):
        if record.made_mount:
            host.run(("mkdir", "-p", record.mount))
        host.run(("mount", "-t", record.filesystem, node_of(record), record.mount), timeout_s=120.0)
    return True


def _mounted(reader: Reader, record: Prepared) -> bool:
    info = reader.dm.info(record.name)
    return any(m.target == record.mount and info and m.device == info.number for m in mounts_of(reader))


def _link(host: Host, record: Prepared) -> None:
    """Udev makes the link where the rules of device mapper are installed; elsewhere we do."""
    if not wait(lambda: host.exists(node_of(record)), _LINK_S if _has_rules(host) else 0.0):
        info = host.dm.info(record.name)
        assert info is not None
        host.run(("ln", "-sfn", f"../dm-{info.number.partition(':')[2]}", node_of(record)))


def _has_rules(reader: Reader) -> bool:
    return any(reader.exists(f"{folder}/udev/rules.d/55-dm.rules") for folder in ("/usr/lib", "/lib", "/etc"))


def _format(host: Host, record: Prepared, erase: bool) -> None:
    node = node_of(record)
    if erase:
        host.run(("wipefs", "--all", "--quiet", node))
    if record.filesystem == "xfs":
        host.run(("mkfs.xfs", "-q", "-f", "-L", record.name[:12], node), timeout_s=MKFS_S)
        return
    lazy = "1" if record.sectors > _LAZY_ABOVE_SECTORS else "0"
    tables = f"lazy_itable_init={lazy},lazy_journal_init={lazy}"
    host.run(("mkfs.ext4", "-q", "-F", "-L", record.name[:16], "-E", tables, node), timeout_s=MKFS_S)


def refuse_use(host: Host, record: Prepared, holders: Holders, live: Sequence[str]) -> None:
    """Refuse to take down what is in use: by a fault, by a device above it, by a mount somewhere else."""
    info = host.dm.info(record.name)
    if info is None:
        return
    if live:
        raise ConflictError(
            f"injections are live on this node: {', '.join(live)}; nothing was changed",
            allowed="first: labctl recover",
        )
    base = base_of(host, record)
    if base and host.dm.table(record.name) != table_of(host, record, base):
        raise ConflictError(
            f"{record.name} has another table than it was given", allowed=f"see: dmsetup table {record.name}"
        )
    for mount in mounts_of(host):
        if mount.device == info.number and mount.target != record.mount:
            raise Refusal(
                f"{record.name} is mounted at {mount.target}",
                field="undo",
                allowed=f"first: umount {mount.target}",
            )
    if not _mounted(host, record) and not wait(lambda: not holders(info.number), OPEN_S):
        by = ", ".join(holders(info.number)) or "somebody who comes and goes"
        raise Refusal(f"{record.name} is held by {by}", field="undo", allowed=_BUSY)


def take_down(host: Host, record: Prepared, holders: Holders) -> None:
    """Unmount, remove the table, the loop device and the file. Bytes of a disk are not touched.

    Raises :class:`Refusal` where a program is still using it; nothing is lost then, and it can be done again.
    """
    info = host.dm.info(record.name)
    if info is not None:
        if record.mount and _mounted(host, record):
            _unmount(host, record)
        _remove(host, record, holders)
    node = node_of(record)
    if not wait(
        lambda: not host.exists(node) and host.file_info(node) is None, _LINK_S if _has_rules(host) else 0.0
    ):
        host.remove_file(node)
    base = base_of(host, record)
    if record.kind == "file":
        host.loop.detach(record.source)
        host.remove_file(record.source)
    elif base:
        host.run(("blockdev", "--flushbufs", base))  # what its page cache has may be from before the table
    if record.made_mount and not host.listdir(record.mount):
        host.query(("rmdir", record.mount))


def _unmount(host: Host, record: Prepared) -> None:
    try:
        host.run(("umount", record.mount), timeout_s=300.0)
    except CommandError as error:
        raise Refusal(
            f"{record.mount} is in use: {error.stderr.strip() or error}; nothing was changed",
            field="undo",
            allowed=_BUSY,
        ) from None


def _remove(host: Host, record: Prepared, holders: Holders) -> None:
    info = host.dm.info(record.name)
    # Not DeviceMapper.remove's own retries: those end in a removal that the kernel does later, unasked.
    if info and not wait(lambda: _closed(host, record), _LINK_S):
        by = ", ".join(holders(info.number)) or "somebody unseen"
        raise Refusal(f"{record.name} is held by {by}; nothing was removed", field="undo", allowed=_BUSY)
    host.dm.remove(record.name)


def _closed(reader: Reader, record: Prepared) -> bool:
    info = reader.dm.info(record.name)
    return info is None or info.open_count == 0
