"""Configuration files, replaced in one go and put back byte for byte.

A file is written beside its place and renamed there, so readers see the old or the new one, also after a crash.
Mode, owner, extended attributes (ACLs, labels) are taken over from the file that was there.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ConfigFile:
    """A regular file. `mtime_ns` is since the epoch; `links` counts its names."""

    data: bytes
    mode: int
    mtime_ns: int
    links: int


class SettingsReader(Protocol):
    """Looking."""

    def file(self, path: str) -> ConfigFile | None:
        """A regular file; None where there is none. Raises OSError where it is something else."""


class Settings(SettingsReader, Protocol):
    """Changing."""

    def replace(self, path: str, data: bytes, tag: str, mtime_ns: int = 0) -> None:
        """Put other bytes into a file, or make it with mode 0644. `tag` marks what is there for a moment.

        `mtime_ns`: when it shall seem to have been changed; 0: now.
        """

    def remove(self, path: str, tag: str) -> None:
        """Remove a file, what of it may lie about, and its directory where that is a `.d` and empty then."""

    def sweep(self, path: str, tag: str) -> None:
        """Remove what a :meth:`replace` that was killed has left beside the file."""


def beside(path: str, tag: str) -> str:
    """Where a file is written before it is renamed: hidden, so that no directory of snippets includes it."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{tag}-{name}"


class ConfigFiles:
    """The real :class:`Settings`."""

    def file(self, path: str) -> ConfigFile | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return ConfigFile(file.read(), stat.S_IMODE(info.st_mode), info.st_mtime_ns, info.st_nlink)

    def replace(self, path: str, data: bytes, tag: str, mtime_ns: int = 0) -> None:
        fresh = beside(path, tag)
        Path(fresh).unlink(missing_ok=True)
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                _alike(path, fd)
                if mtime_ns:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
                os.fsync(fd)
            os.rename(fresh, path)  # noqa: PTH104  (raises with both names)
        except OSError:
            Path(fresh).unlink(missing_ok=True)
            raise
        _sync_folder(path)

    def remove(self, path: str, tag: str) -> None:
        folder = Path(path).parent
        self.sweep(path, tag)
        Path(path).unlink(missing_ok=True)
        if folder.is_dir():
            _sync_folder(path)
            if folder.suffix == ".d":
                with suppress(OSError):  # ENOTEMPTY: others have files there
                    folder.rmdir()

    def sweep(self, path: str, tag: str) -> None:
        Path(beside(path, tag)).unlink(missing_ok=True)


def _alike(path: str, fd: int) -> None:
    """Owner, mode and extended attributes of the file that is there; 0644 where there is none."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        os.fchmod(fd, 0o644)
        return
    os.fchown(fd, there.st_uid, there.st_gid)
    os.fchmod(fd, stat.S_IMODE(there.st_mode))  # after the owner: a change of owner clears set-id bits
    with suppress(OSError):  # ENOTSUP: a file system without extended attributes
        for name in os.listxattr(path, follow_symlinks=False):
            os.setxattr(fd, name, os.getxattr(path, name, follow_symlinks=False))


def _sync_folder(path: str) -> None:
    fd = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
