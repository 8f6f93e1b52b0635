"""Making a mounted file system stop as one that met an error does, without an error of its disk.

Sources: Documentation/ABI/testing/sysfs-fs-ext4 (trigger_fs_error), Documentation/admin-guide/ext4.rst (errors=),
include/uapi/linux/fs.h (FIFREEZE, FITHAW), fs/xfs/libxfs/xfs_fs.h and fs/ext4/ext4.h (GOINGDOWN and its flags).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.host import fsck
from node_agent.host.bounded import within
from node_agent.host.mounting import Mounted
from node_agent.host.room import Loses
from node_agent.host.tool import run_tool

STOP_S, LOOK_S = 60.0, 5.0

_FIFREEZE, _FITHAW, _GOINGDOWN = 0xC0045877, 0xC0045878, 0x8004587D
_FLAGS: dict[Loses, int] = {"nothing": 0, "data": 1, "log": 2}
"""GOING_FLAGS_DEFAULT freezes first, so all is on the disk; LOGFLUSH writes the log only; NOLOGFLUSH nothing."""

_REACTIONS = {1: "continue", 2: "remount-ro", 3: "panic"}
_SUPERBLOCK_AT, _SUPERBLOCK_BYTES, _ERRORS_AT = 1024, 1024, 0x3C


class FileSystemStops:
    """Every error is an OSError or a CommandError."""

    def reaction(self, mounted: Mounted) -> str:
        """What an ext4 does at an error: "continue", "remount-ro" or "panic".

        The kernel shows the option only where it is not what the superblock says.
        """
        words = dict(word.partition("=")[::2] for word in mounted.options.split(","))
        return words.get("errors") or self.usual_reaction(mounted)

    def usual_reaction(self, mounted: Mounted) -> str:
        """What its superblock says, which counts where no option is given."""
        block = within(LOOK_S, f"reading {mounted.source}", lambda: _superblock(mounted.source))
        return _REACTIONS.get(struct.unpack_from("<H", block, _ERRORS_AT)[0], "continue")

    def set_reaction(self, mounted: Mounted, reaction: str) -> None:
        """Remount with another one and all other options as they are, whatever fstab says."""
        alone = ("--options-source=mtab", "--options-source-force")
        run_tool(("mount", *alone, "-o", f"remount,errors={reaction}", mounted.target), fsck.MOUNT_S).checked()

    def raise_error(self, mounted: Mounted, text: str, loses: Loses) -> None:
        """Let an ext4 meet an error, which it logs with `text`.

        To lose nothing it is frozen for that moment: all is on the disk then, and writers wait.
        """
        name = Path(os.path.realpath(f"/sys/dev/block/{mounted.device}")).name
        trigger = Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
        late = threading.Event()

        def work() -> None:
            with _frozen(mounted.target, loses == "nothing"):
                if late.is_set():
                    raise TimeoutError(errno.ETIMEDOUT, "too late", mounted.target)
                trigger.write_text(text)

        try:
            within(STOP_S, f"stopping {mounted.target}", work)
        finally:
            late.set()

    def shut_down(self, mounted: Mounted, loses: Loses) -> None:
        """Shut a file system down: everything answers EIO from then on."""

        def work() -> None:
            with _opened(mounted.target) as fd:
                fcntl.ioctl(fd, _GOINGDOWN, struct.pack("I", _FLAGS[loses]))

        within(STOP_S, f"shutting down {mounted.target}", work)

    def thaw(self, mounted: Mounted) -> None:
        """End a freeze; one that is not frozen is fine."""
        with _opened(mounted.target) as fd:
            try:
                fcntl.ioctl(fd, _FITHAW, 0)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise


@contextmanager
def _opened(target: str) -> Iterator[int]:
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _frozen(target: str, wanted: bool) -> Iterator[None]:
    with _opened(target) as fd:
        if wanted:
            fcntl.ioctl(fd, _FIFREEZE, 0)
        try:
            yield
        finally:
            if wanted:
                fcntl.ioctl(fd, _FITHAW, 0)


def _superblock(path: str) -> bytes:
    with Path(path).open("rb", buffering=0) as device:
        return os.pread(device.fileno(), _SUPERBLOCK_BYTES, _SUPERBLOCK_AT)
