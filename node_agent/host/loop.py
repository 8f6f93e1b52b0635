"""Loop devices by ioctl. Source: loop(4), include/uapi/linux/loop.h, and the `loop` folder in sysfs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from node_agent.host import LoopInfo
from node_agent.host.holders import bound_loops, holders, read_line

_CONTROL = "/dev/loop-control"
_CLR_FD, _CONFIGURE, _CTL_GET_FREE = 0x4C01, 0x4C0A, 0x4C82
_READ_ONLY, _DIRECT_IO = 1, 16
_CONFIG = struct.Struct("=II5Q4I64s64s32s2Q8Q")
_DETACH_S, _TRIES = 5.0, 20


class LoopDevices:
    """Binds and unbinds loop devices. Every error is an OSError."""

    def list(self) -> Sequence[LoopInfo]:
        """Every loop device that is bound to something."""
        return tuple(bound_loops())

    def attach(self, backing: str, *, direct_io: bool, read_only: bool = False) -> LoopInfo:
        """Bind a free loop device to `backing`; one already bound to it is returned.

        Raises OSError (EINVAL) where direct I/O is wanted and the kernel does not give it.
        """
        there = _over(backing)
        if there:
            return there[0]
        mode = os.O_RDONLY if read_only else os.O_RDWR
        fd = os.open(backing, mode | os.O_CLOEXEC)
        try:
            name = _bind(fd, backing, (_DIRECT_IO if direct_io else 0) | (_READ_ONLY if read_only else 0))
        finally:
            os.close(fd)
        if direct_io and read_line(Path("/sys/block") / name / "loop" / "dio") != "1":
            self.detach(backing)
            raise OSError(errno.EINVAL, "the kernel does no direct I/O on it", backing)
        return _over(backing)[0]

    def detach(self, backing: str) -> None:
        """Unbind every loop device over `backing`; none is fine.

        With another opener the kernel only marks it, and unbinds at the last close: that is waited for some
        seconds (udev's blkid looks into loop devices), then the OSError names the holders.
        """
        for info in _over(backing):
            _unbind(info.path)
        deadline = time.monotonic() + _DETACH_S
        while left := _over(backing):
            if time.monotonic() > deadline:
                who = ", ".join(h for info in left for h in holders(info.number)) or "somebody unseen"
                raise OSError(errno.EBUSY, f"{left[0].path} is held by {who}", backing)
            time.sleep(0.01)


def _over(backing: str) -> list[LoopInfo]:
    return [info for info in bound_loops() if info.backing == backing]


def _open_control() -> int:
    try:
        return os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):  # a machine without modules has no modprobe
            subprocess.run(("modprobe", "loop"), check=False, capture_output=True, timeout=30)
        return os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)


def _bind(fd: int, backing: str, flags: int) -> str:
    """Bind the first free device that nobody else takes meanwhile; returns its name."""
    label = backing.encode()[:63]
    config = _CONFIG.pack(fd, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags, label, b"", b"", 0, 0, *(0,) * 8)
    control = _open_control()
    try:
        for _ in range(_TRIES):
            name = f"loop{fcntl.ioctl(control, _CTL_GET_FREE)}"
            device = os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:
                return name
            finally:
                os.close(device)
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device stays free", backing)


def _unbind(path: str) -> None:
    try:
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.ioctl(device, _CLR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: it was unbound meanwhile
            raise
    finally:
        os.close(device)
