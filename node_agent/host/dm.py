"""Device mapper by ioctl: no process, no library, no device node for table entries.

Source: include/uapi/linux/dm-ioctl.h and Documentation/admin-guide/device-mapper of the kernel; the udev flags are
those of libdevmapper.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node_agent.host import DmInfo, DmTarget
from node_agent.host.bounded import within
from node_agent.host.holders import holders
from node_agent.host.libc import ioctl

_CONTROL = "/dev/mapper/control"
_VERSION = (4, 0, 0)
_HEAD = struct.Struct("=3I2IIiIIIQ128s129s7x")
_SPEC = struct.Struct("=QQiI16s")
_LIST = struct.Struct("=QI")
_NAME_BYTES = 127

_LIST_DEVICES, _CREATE, _REMOVE, _SUSPEND, _STATUS = 2, 3, 4, 6, 7
_LOAD, _CLEAR, _TABLE, _MESSAGE, _TARGET_VERSION = 9, 10, 12, 14, 17

_F_SUSPEND, _F_STATUS_TABLE, _F_BUFFER_FULL = 1 << 1, 1 << 4, 1 << 8
_F_ACTIVE, _F_SKIP_LOCKFS, _F_NOFLUSH = 1 << 5, 1 << 10, 1 << 11
_F_DATA_OUT, _F_DEFERRED = 1 << 16, 1 << 17

_UDEV_HANDS_OFF = (0x0001 | 0x0002 | 0x0004 | 0x0008 | 0x0040) << 16
"""No rules but the core ones, this is the primary event: blkid would hold the device and read what must fail."""

_UDEV_PUBLIC = 0x0040 << 16
"""This is the primary event: all rules run."""

_SWAP_S, _REMOVE_S, _NODE_S = 10.0, 5.0, 2.0
_SHOWN = 8
"""Lines of a refused table that the error has."""

_ROOM, _TABLE_ROOM = 2048, 16384
_MAX_REPLY = 1 << 22


@dataclass(frozen=True)
class _Reply:
    """What the kernel wrote back."""

    count: int
    open_count: int
    flags: int
    device: int
    data: bytes

    @property
    def number(self) -> str:
        return f"{os.major(self.device)}:{os.minor(self.device)}"


class DeviceMapper:
    """Reads and changes device mapper. Every error is an OSError with the kernel's errno."""

    def list(self) -> Sequence[DmInfo]:
        """Every device, by name; none where the kernel has no device mapper."""
        try:
            names = _names(_call(_LIST_DEVICES).data)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return ()
            raise
        found = [self.info(name) for name in names]
        return tuple(info for info in found if info)

    def info(self, name: str) -> DmInfo | None:
        """One device, or None where there is none of that name."""
        try:
            reply = _call(_STATUS, name)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise
        return DmInfo(name, reply.number, reply.open_count, bool(reply.flags & _F_SUSPEND))

    def table(self, name: str) -> tuple[DmTarget, ...]:
        """The live table; empty where none was ever resumed."""
        return _targets(_call(_TABLE, name, flags=_F_STATUS_TABLE))

    def status(self, name: str) -> tuple[DmTarget, ...]:
        """The live table with each target's status in place of its arguments."""
        return _targets(_call(_TABLE, name, flags=_F_NOFLUSH))

    def has_target(self, kind: str) -> bool:
        """Whether the kernel has a target of this kind, its module loaded if need be.

        Asking leaves nothing in the kernel log, as loading a table of an unknown kind does. Kernels before 5.4 do
        not know the question (DM_GET_TARGET_VERSION); then only trying tells.
        """
        try:
            _call(_TARGET_VERSION, kind)
        except OSError as error:
            return error.errno == errno.ENOTTY
        return True

    def create(self, name: str, table: Sequence[DmTarget], *, public: bool = False) -> DmInfo:
        """Make a device and resume it. A device of that name with the same table is left as it is."""
        if len(name.encode()) > _NAME_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"device-mapper name of more than {_NAME_BYTES} bytes", name)
        there = self.info(name)
        if there:
            if self.table(name) == tuple(table) and not there.suspended:
                return there
            raise OSError(errno.EEXIST, "another device has that name", name)
        _call(_CREATE, name)
        try:
            _load(name, table)
            info = self._started(name, _UDEV_PUBLIC if public else _UDEV_HANDS_OFF)
        except OSError:
            self.remove(name)
            raise
        return info

    def _started(self, name: str, event: int) -> DmInfo:
        reply = _call(_SUSPEND, name, event=event)
        _wait_for_node(Path("/dev") / f"dm-{os.minor(reply.device)}")
        return DmInfo(name, reply.number, reply.open_count, False)

    def swap(self, name: str, table: Sequence[DmTarget]) -> None:
        """Replace the live table under I/O, in one suspend and resume; on failure the old one stays.

        The file system is not frozen: both tables lead to the same data, so draining the I/O in flight is enough,
        and a freeze would write back the whole file system first. Udev's record of the device stays as it is.
        Raises TimeoutError when the I/O in flight does not end in time; the kernel then keeps the old table.
        """
        info = self.info(name)
        if info is None:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), name)
        if info.suspended:
            raise OSError(errno.EBUSY, "somebody keeps it suspended", name)
        _load(name, table)
        try:
            within(
                _SWAP_S,
                f"device-mapper swap of {name} (I/O in flight)",
                lambda: _call(_SUSPEND, name, flags=_F_SKIP_LOCKFS),
            )
        except OSError:
            _call(_CLEAR, name)
            raise
        if _shape(self.table(name)) != _shape(table):
            raise OSError(errno.EIO, "the kernel shows another table than the one just loaded", name)

    def message(self, name: str, sector: int, text: str) -> str:
        """Send a target its message; returns what it answers."""
        data = struct.pack("=Q", sector) + text.encode() + b"\0"
        reply = _call(_MESSAGE, name, payload=data)
        return reply.data.split(b"\0")[0].decode(errors="replace") if reply.flags & _F_DATA_OUT else ""

    def remove(self, name: str) -> None:
        """Remove a device; gone already is fine.

        EBUSY is tried again for some seconds, because udev's helpers look into devices at any time; then the
        removal is left to the kernel for when the last user lets go, and the OSError names the holders.
        """
        deadline = time.monotonic() + _REMOVE_S
        pause = 0.002
        while not _removed(name):
            if time.monotonic() > deadline:
                self._remove_later(name)
                return
            time.sleep(pause)
            pause = min(pause * 2, 0.1)

    def _remove_later(self, name: str) -> None:
        info = self.info(name)
        who = ", ".join(holders(info.number)) if info else ""
        if not _removed(name, flags=_F_DEFERRED) or self.info(name) is not None:
            text = f"held by {who or 'somebody unseen'}; the kernel removes it when they let go"
            raise OSError(errno.EBUSY, text, name)


def _removed(name: str, flags: int = 0) -> bool:
    try:
        _call(_REMOVE, name, flags=flags, event=_UDEV_HANDS_OFF)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return True
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _load(name: str, table: Sequence[DmTarget]) -> None:
    try:
        _call(_LOAD, name, payload=pack_table(table), count=len(table))
    except OSError as error:
        text = "; ".join(f"{t.start} {t.length} {t.kind} {t.args}".rstrip() for t in table[:_SHOWN])
        text += f"; and {len(table) - _SHOWN} more" if len(table) > _SHOWN else ""
        raise OSError(error.errno, f"{error.strerror}: the kernel refused the table {text!r}", name) from error


def pack_table(table: Sequence[DmTarget]) -> bytes:
    """Targets as DM_TABLE_LOAD wants them: each spec followed by its text, the next one 8-byte aligned."""
    out = bytearray()
    for target in table:
        text = target.args.encode() + b"\0"
        text += bytes(-(len(text) + _SPEC.size) % 8)
        out += _SPEC.pack(target.start, target.length, 0, _SPEC.size + len(text), target.kind.encode()) + text
    return bytes(out)


def unpack_table(count: int, data: bytes) -> tuple[DmTarget, ...]:
    """Targets of a DM_TABLE_STATUS reply; there `next` counts from the first spec."""
    found, at = [], 0
    for _ in range(count):
        start, length, _status, following, kind = _SPEC.unpack_from(data, at)
        text = data[at + _SPEC.size :].split(b"\0", 1)[0]
        found.append(DmTarget(start, length, kind.split(b"\0")[0].decode(), text.decode().strip()))
        at = following
    return tuple(found)


def _shape(table: Sequence[DmTarget]) -> list[tuple[int, int, str]]:
    """A table without its arguments, which the kernel may print in another way than they were given."""
    return [(t.start, t.length, t.kind) for t in table]


def _targets(reply: _Reply) -> tuple[DmTarget, ...]:
    return unpack_table(reply.count, reply.data) if reply.flags & _F_ACTIVE else ()


def _names(data: bytes) -> list[str]:
    names, at = [], 0
    while len(data) >= at + _LIST.size:
        device, following = _LIST.unpack_from(data, at)
        if device:
            names.append(data[at + _LIST.size :].split(b"\0", 1)[0].decode())
        if not following:
            break
        at += following
    return sorted(names)


def _wait_for_node(path: Path) -> None:
    deadline = time.monotonic() + _NODE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise OSError(errno.ENOENT, "the kernel made no device node; is devtmpfs mounted on /dev?", str(path))
        time.sleep(0.005)


def _open_control() -> int:
    try:
        return os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Opening the node loads the module where udev made the node at boot; elsewhere the module makes it.
        with contextlib.suppress(FileNotFoundError):  # a machine without modules has no modprobe
            subprocess.run(("modprobe", "dm_mod"), check=False, capture_output=True, timeout=30)
        return os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)


def _call(
    command: int, name: str = "", *, flags: int = 0, event: int = 0, payload: bytes = b"", count: int = 0
) -> _Reply:
    """One ioctl, again with a larger buffer while the reply does not fit."""
    room = _TABLE_ROOM if command == _TABLE else _ROOM
    fd = _open_control()
    try:
        while True:
            size = _HEAD.size + max(room, len(payload))
            head = _HEAD.pack(*_VERSION, size, _HEAD.size, count, 0, flags, event, 0, 0, name.encode(), b"")
            buffer = ctypes.create_string_buffer(head + payload, size)
            ioctl(fd, (3 << 30) | (_HEAD.size << 16) | (0xFD << 8) | command, buffer, name)
            reply = _unpacked(buffer)
            if not reply.flags & _F_BUFFER_FULL:
                return reply
            room *= 4
            if room > _MAX_REPLY:
                raise OSError(errno.EMSGSIZE, "the kernel's reply is too large", name)
    finally:
        os.close(fd)


def _unpacked(buffer: ctypes.Array[ctypes.c_char]) -> _Reply:
    head = _HEAD.unpack_from(buffer)
    _, _, _, size, start, count, open_count, flags, _event, _pad, device = head[:11]
    return _Reply(count, open_count, flags, device, bytes(memoryview(buffer)[start:size]))
