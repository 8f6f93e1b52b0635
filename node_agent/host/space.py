"""Space and inodes of mounted file systems: how many there are, taking them as a user would, and giving them back.

What a user does is done as that user: the kernel keeps the blocks that ext4 reserves for root (mke2fs(8), -m) from
everybody without CAP_SYS_RESOURCE, so nothing has to be reckoned here. Credentials belong to a thread: one that
lives for a single task gives up root for good, and nobody else notices. (The C library's wrappers would change
every thread of the process; credentials(7), "C library/kernel differences".)
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import time
from collections.abc import Callable
from typing import TypeVar

from node_agent.host.bounded import within
from node_agent.host.libc import check, libc
from node_agent.host.room import Room

T = TypeVar("T")

FILL_S, TAKE_S, CLEAR_S, ASK_S = 60.0, 100.0, 300.0, 10.0
"""The longest that each may take: well below the watchdog of the agent's unit, but for clearing at its start."""

BLOCK = 4096
_PIECE = 1 << 30
_LAST_BLOCKS, _ROUNDS = 4096, 4
_AT_ONCE = 512
_KEPT_INODES = 64
"""XFS makes inodes by so many."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
"""Numbers of setgroups, setresgid, setresuid: arch/x86/entry/syscalls/syscall_64.tbl, asm-generic/unistd.h."""


class FileSystemSpace:
    """Room on mounted file systems. Every error is an OSError."""

    def room(self, path: str) -> Room:
        """What there is and what is left, as statfs(2) says."""
        found = within(ASK_S, f"asking {path}", lambda: os.statvfs(path))
        return Room(
            size=found.f_blocks * found.f_frsize, free=found.f_bfree * found.f_frsize,
            available=found.f_bavail * found.f_frsize, inodes=found.f_files, inodes_free=found.f_ffree,
        )  # fmt: skip

    def refuses_data(self, folder: str, uid: int) -> bool:
        """Whether a write of one block by that user answers ENOSPC. The file has no name and is gone at once.

        A full XFS does not even make the file, for nobody: that counts, too.
        """
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                as_user(uid, uid, ASK_S, f"writing to {folder}", lambda: os.write(fd, bytes(BLOCK)))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return True
        return False

    def refuses_files(self, folder: str) -> bool:
        """Whether a new file answers ENOSPC. No inode is kept for root, so nobody else has to ask."""
        try:
            os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return True
        return False

    def start_file(self, path: str, uid: int, gid: int) -> None:
        """An empty file of that user's. One that is there already is an error."""
        os.close(_new_file(path, uid, gid))

    def fill(self, path: str, uid: int, gid: int, leave: int) -> None:
        """A file of that user's which takes all the space he can have, but for about `leave` bytes."""
        fd = _new_file(path, uid, gid)
        try:
            as_user(uid, gid, FILL_S, f"filling {path}", lambda: _fill(fd, leave))
        finally:
            os.close(fd)

    def take_inodes(self, path: str, uid: int, gid: int, leave: int) -> None:
        """A directory of that user's with so many empty files that about `leave` inodes are left.

        Raises OSError (ENOSPC) where something else runs out first, TimeoutError where there are too many.
        """
        os.mkdir(path, 0o755)  # noqa: PTH102  (beside calls on descriptors)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(fd, uid, gid)
            os.fchmod(fd, 0o755)
            as_user(uid, gid, TAKE_S + ASK_S, f"making files in {path}", lambda: _take(fd, path, leave))
        finally:
            os.close(fd)

    def clear(self, path: str) -> None:
        """Remove what :meth:`fill`, :meth:`start_file` or :meth:`take_inodes` made; gone already is fine.

        Links are not followed, and files in the directory that have other names stay: then it does, too.
        """
        within(CLEAR_S, f"removing {path}", lambda: _clear(path))


def as_user(uid: int, gid: int, seconds: float, what: str, work: Callable[[], T]) -> T:
    """The result of `work`, done with the rights of a user and of no groups but `gid`. Bounded."""

    def lowered() -> T:
        become(uid, gid)
        return work()

    return within(seconds, what, lowered)


def become(uid: int, gid: int) -> None:
    """Make the calling thread, and no other, one of that user's, for good. Raises OSError."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        raise OSError(errno.ENOSYS, f"changing the user of a thread is not known on {platform.machine()}")
    groups, group, user = calls
    number = ctypes.c_long
    check(libc().syscall(number(groups), number(0), None), "setgroups")
    check(libc().syscall(number(group), number(gid), number(gid), number(gid)), "setresgid")
    check(libc().syscall(number(user), number(uid), number(uid), number(uid)), "setresuid")


def _new_file(path: str, uid: int, gid: int) -> int:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    os.fchown(fd, uid, gid)
    os.fchmod(fd, 0o644)
    return fd


def _fill(fd: int, leave: int) -> None:
    """Without writing: pieces of fallocate(2) that get smaller; the last blocks are written, as users will."""
    at, piece, end = 0, _PIECE, time.monotonic() + FILL_S
    while piece >= BLOCK:
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, f"it is not full after {FILL_S:g} s")
        room = os.fstatvfs(fd)
        wanted = min(piece, room.f_bavail * room.f_frsize - leave) // BLOCK * BLOCK
        if wanted <= 0:
            break
        try:
            os.posix_fallocate(fd, at, wanted)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            piece = wanted // 2
        else:
            at += wanted
    if leave:
        return
    # The kernel counts room for metadata that is not needed then, and gives it back once the data has its place.
    for _ in range(_ROUNDS):
        before = at
        at = _append(fd, at)
        os.fsync(fd)
        if at == before:
            break


def _append(fd: int, at: int) -> int:
    for _ in range(_LAST_BLOCKS):
        try:
            at += os.pwrite(fd, bytes(BLOCK), at)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            break
    return at


def _take(fd: int, path: str, leave: int) -> None:
    number, end = 0, time.monotonic() + TAKE_S
    while True:
        if time.monotonic() > end:
            raise TimeoutError(
                errno.ETIMEDOUT, f"there are free inodes after {TAKE_S:g} s and {number} files", path
            )
        left = os.fstatvfs(fd).f_ffree - leave
        if leave and left <= 0:
            return
        for _ in range(min(_AT_ONCE, left) if leave else _AT_ONCE):
            try:
                os.mknod(inode_name(number), stat.S_IFREG | 0o644, dir_fd=fd)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                if os.fstatvfs(fd).f_ffree > leave + _KEPT_INODES:
                    raise OSError(errno.ENOSPC, "space runs out before inodes do", path) from error
                return
            number += 1


def inode_name(number: int) -> str:
    """The name of one of many empty files."""
    return f"{number:08d}"


def _is_ours(name: str) -> bool:
    return len(name) == len(inode_name(0)) and name.isdigit()


def _clear(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in os.listdir(fd):  # noqa: PTH208  (of a descriptor)
                if _is_ours(name):
                    os.unlink(name, dir_fd=fd)
        finally:
            os.close(fd)
        os.rmdir(path)  # noqa: PTH106
        return
    if stat.S_ISREG(mode):  # somebody who reads it must not keep the space
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)
    os.unlink(path)  # noqa: PTH108
