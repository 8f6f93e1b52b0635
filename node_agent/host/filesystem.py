"""The health of mounted file systems on data disks, and bringing a sick one back.

A file system that met an error protects itself: ext4 aborts its journal and goes read-only, XFS shuts down. That
outlasts the error. `/proc/mounts` may go on saying `rw`, and a remount heals nothing (measured on 6.1 and 6.12).
So health is found out by writing, and healing is: unmount, check, mount again.

Source: ext4 in Documentation/ABI/testing/sysfs-fs-ext4 and Documentation/filesystems/ext4/super.rst of the kernel.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from node_agent.facts import parse_mountinfo
from node_agent.host import fsck, units
from node_agent.host.bounded import within
from node_agent.host.holders import read_line
from node_agent.host.mounting import Mounted, Repair
from node_agent.host.tool import run_tool

STATE = Path("/var/lib/groundfault/repairs")
"""What repairs found, a file each. Outlasts a reboot: losses are told even if the agent dies meanwhile."""

_KEEP = 100
_LOOK_S, _FREE_S = 5.0, 5.0
_BUSY = 32
_TREE_S, _TREE_ENTRIES = 20.0, 20_000
_EXT = ("ext2", "ext3", "ext4")
_SHOWN_ONLY = ("attr2", "seclabel")
"""What the kernel shows among the options and does not want to be told (attr2 is deprecated since Linux 5.10)."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SUPERBLOCK_BYTES, _MAGIC_AT, _STATE_AT, _EXT_MAGIC, _ERROR_FS = 1024, 0x38, 0x3A, 0xEF53, 2
_UUID_AT = 0x68
_UUID_CALLS = ((0x80111500, 17, 1), (0x8008662C, 24, 8), (0x8100587E, 256, 64))
"""FS_IOC_GETFSUUID, EXT4_IOC_GETFSUUID, XFS_IOC_FSGEOMETRY: request, bytes of the answer, where its UUID is."""
_EXT_ASKS = struct.pack("<II", 16, 0)
"""EXT4_IOC_GETFSUUID is told how much room there is; the others do not look."""

Tree = dict[str, int]
"""Path of each file, and its size in bytes."""


class FileSystems:
    """Looks at mounted file systems and repairs them. Every error is an OSError or a CommandError."""

    def __init__(self, state: Path = STATE) -> None:
        self._state = state

    def mounted(self, target: str) -> Mounted | None:
        """What is mounted at a place, with the options that mount it again; None where nothing is."""
        found = None
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            one = parse_mountinfo(line)
            if one and one[0].target == target:
                of_super = line.rpartition(" - ")[2].split()[2:]
                options = dict.fromkeys((*one[0].options.split(","), *",".join(of_super).split(",")))
                # Read-only of the mount is what somebody asked for; of the superblock it may be a reaction.
                if "rw" in options:
                    options.pop("ro", None)
                found = Mounted(one[0].source, target, one[0].fstype, ",".join(options), one[0].device)
        return found

    def ailments(self, mounted: Mounted) -> Mapping[str, str]:
        """What is wrong with a mounted file system, by kind; empty when it is well.

        Writes a file that has no name and is gone at once. A full file system is well.
        """
        found: dict[str, str] = {}
        if mounted.fstype in _EXT:
            found |= _ext_errors(mounted.device)
        work = _read_something if "ro" in mounted.options.split(",") else _write_something
        try:
            within(_LOOK_S, f"writing to {mounted.target}", lambda: work(mounted.target))
        except TimeoutError as error:
            found["no-answer"] = f"{mounted.target} does not answer: {error.strerror}"
        except OSError as error:
            if error.errno not in _FULL:
                found["stopped"] = f"{mounted.fstype} at {mounted.target} has stopped: {error.strerror}"
        return found

    def lost(self, name: str) -> tuple[str, ...]:
        """Which data the repairs of that name found to be lost for good."""
        return tuple(self._record(name).get("lost", ()))

    def begun(self, name: str) -> Mounted | None:
        """What a repair of that name has begun to bring back and has not yet; None where nothing is."""
        wanted = self._record(name).get("wanted")
        return Mounted(**wanted) if wanted else None

    def identity(self, target: str) -> str:
        """The UUID of a mounted file system, from memory: its disk may be dead (FS_IOC_GETFSUUID, Linux 6.9).

        Empty where this kernel or file system does not tell; older XFS and ext4 are asked in their own ways.
        """
        fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for request, size, at in _UUID_CALLS:
                answer = bytearray(size)
                answer[: len(_EXT_ASKS)] = _EXT_ASKS
                try:
                    fcntl.ioctl(fd, request, answer)
                except OSError:
                    continue
                return str(uuid.UUID(bytes=bytes(answer[at : at + 16])))
        finally:
            os.close(fd)
        return ""

    def identity_on(self, path: str, offset: int) -> str:
        """The UUID in the superblock of an ext4 or XFS at `offset` bytes of a device; empty for anything else."""
        block = within(_LOOK_S, f"reading {path}", lambda: _read_at(path, offset, 2 * _SUPERBLOCK_BYTES))
        if block[:4] == b"XFSB":
            return str(uuid.UUID(bytes=block[32:48]))
        ext = block[_SUPERBLOCK_BYTES:]
        if len(ext) == _SUPERBLOCK_BYTES and struct.unpack_from("<H", ext, _MAGIC_AT) == (_EXT_MAGIC,):
            return str(uuid.UUID(bytes=ext[_UUID_AT : _UUID_AT + 16]))
        return ""

    def repair(self, name: str, wanted: Mounted, *, flushed: bool = False) -> Repair:
        """Unmount, check, mount again as `wanted`, and start what had to be stopped for it. Twice equals once.

        Raises OSError (EBUSY) naming who uses the file system and is no service: nothing is killed for it, and
        nothing was changed. What is found and who is to be started again is on disk before anything is stopped.
        """
        done: list[str] = []
        keeper = f"{name}-keeper.service"
        now = self.mounted(wanted.target)
        users = _users_that_can_be_stopped(now) if now else ()
        self.note(name, wanted=asdict(wanted))
        try:
            if now is not None:
                done += [f"stopped {unit}" for unit in self._stop(name, now, users, keeper)]
            done += self._bring_back(name, wanted, now, flushed)
        finally:
            # Never onto an empty mount point: there they would write to the disk of the system.
            if self.mounted(wanted.target) is not None:
                units.start(self._units(name), keeper)
                done += [f"started {unit}" for unit in self._units(name)]
                self.note(name, wanted=None, units=[])
        return Repair(tuple(done), self.lost(name))

    def _bring_back(self, name: str, wanted: Mounted, now: Mounted | None, flushed: bool) -> list[str]:
        done: list[str] = []
        before: Tree = {}
        if now is not None:
            if not flushed and self.ailments(now).keys() & {"stopped", "no-answer"}:
                text = f"{now.target}: what was written and not yet on the disk when {now.fstype} stopped"
                self._lost(name, (text,))
            before = _tree(now.target)
            _unmount(now)
            done.append(f"unmounted {now.target}")
        device = os.path.realpath(wanted.source)
        _wait_until_free(device)
        found = fsck.check(device, wanted.fstype, self._state / "scratch")
        self._lost(name, found.lost)
        done += found.done
        _mount(wanted)
        done.append(f"mounted {wanted.target}")
        self._lost(name, fsck.shortened(missing(before, _tree(wanted.target))))
        return done

    def _stop(self, name: str, now: Mounted, users: Iterable[units.User], keeper: str) -> tuple[str, ...]:
        stopped = units.with_triggers(tuple(dict.fromkeys(user.unit for user in users)))
        again = dict.fromkeys((*self._units(name), *units.pulled_down(stopped, _mount_unit(now.target))))
        self.note(name, units=list(again))
        units.keep_loaded(keeper, self._units(name))
        units.stop(stopped)
        return stopped

    def _units(self, name: str) -> tuple[str, ...]:
        return tuple(self._record(name).get("units", ()))

    def _record(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self._state / f"{name}.json").read_text())
        except (FileNotFoundError, ValueError):  # a torn one was never believed: it is renamed into place
            return {}
        return dict(found)

    def _lost(self, name: str, more: Iterable[str]) -> None:
        self.note(name, lost=list(dict.fromkeys((*self.lost(name), *more))))

    def note(self, name: str, **news: Any) -> None:
        """Put on disk what has changed of a repair: `wanted` until its end, `units` to start, what is `lost`."""
        wanted = self._record(name) | news
        self._state.mkdir(parents=True, exist_ok=True)
        for old in sorted(self._state.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_KEEP]:
            old.unlink(missing_ok=True)
        fresh = self._state / f"{name}.fresh"
        with fresh.open("w") as file:
            json.dump(wanted, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._state / f"{name}.json")


def _users_that_can_be_stopped(now: Mounted) -> tuple[units.User, ...]:
    """Whoever uses it, all of them services. Raises OSError (EBUSY) naming those that are none."""
    others = [m for m in parse_mountinfo(Path("/proc/self/mountinfo").read_text()) if m.target != now.target]
    held = [f"{m.target} is mounted from it, too" for m in others if m.device == now.device]
    held += [f"{m.target} is mounted below it" for m in others if m.target.startswith(f"{now.target}/")]
    users = units.users_of(now.device, now.target)
    held += [f"{user.who} uses it" for user in users if not user.unit]
    if held:
        raise OSError(errno.EBUSY, f"it cannot be unmounted: {'; '.join(fsck.shortened(held))}", now.target)
    return users


def _ext_errors(device: str) -> dict[str, str]:
    """Errors that ext4 has counted, in memory and in its superblock."""
    name = Path(os.path.realpath(f"/sys/dev/block/{device}")).name
    folder = Path("/sys/fs/ext4") / name
    count = read_line(folder / "errors_count")
    if count not in ("", "0"):
        first, last = (read_line(folder / f"{which}_error_func") for which in ("first", "last"))
        return {"errors": f"ext4 has counted {count} errors, the first in {first}, the last in {last}"}
    try:
        block = within(
            _LOOK_S, f"reading /dev/{name}", lambda: _read_at(f"/dev/{name}", _SUPERBLOCK_BYTES, _SUPERBLOCK_BYTES)
        )
    except OSError as error:
        return {"errors": f"the superblock cannot be read: {error.strerror}"}
    (magic,), (state,) = struct.unpack_from("<H", block, _MAGIC_AT), struct.unpack_from("<H", block, _STATE_AT)
    if magic != _EXT_MAGIC:
        return {"errors": f"/dev/{name} has no ext4 superblock any more"}
    return {"errors": "the superblock says that there are errors"} if state & _ERROR_FS else {}


def _read_at(path: str, offset: int, length: int) -> bytes:
    with Path(path).open("rb", buffering=0) as device:
        return os.pread(device.fileno(), length, offset)


def _write_something(target: str) -> None:
    """A file without a name (O_TMPFILE), written and synced: a journal commit, or a log write."""
    fd = os.open(target, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, bytes(512))
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_something(target: str) -> None:
    os.listdir(target)  # noqa: PTH208  (one call, nothing kept open)


def _tree(target: str) -> Tree:
    """The regular files below a mount point, as far as they can be seen in a bounded time."""
    found: Tree = {}
    end = time.monotonic() + _TREE_S

    def walk() -> Tree:
        device = Path(target).stat().st_dev
        for folder, _, names in os.walk(target):
            for name in names:
                path = f"{folder}/{name}"
                try:
                    info = os.lstat(path)
                except OSError:
                    continue
                if info.st_dev == device and stat.S_ISREG(info.st_mode):
                    found[path] = info.st_size
            if len(found) > _TREE_ENTRIES or time.monotonic() > end:
                break
        return found

    try:
        return within(_TREE_S, f"looking through {target}", walk)
    except OSError:
        return {}  # an XFS that has shut down shows nothing


def missing(before: Tree, after: Tree) -> list[str]:
    """What a repair has cost: files that are gone or shorter, and files that have lost their names."""
    gone = [f"{path} ({size} bytes)" for path, size in sorted(before.items()) if path not in after]
    shorter = [
        f"{path} has {after[path]} bytes, it had {size}"
        for path, size in sorted(before.items())
        if after.get(path, size) < size
    ]
    nameless = [
        f"the name of what is now {path} ({size} bytes)"
        for path, size in sorted(after.items())
        if before and "/lost+found/" in path and path not in before
    ]
    return gone + shorter + nameless


def _unmount(now: Mounted) -> None:
    """Never lazily. Raises OSError (EBUSY) naming who came meanwhile, CommandError where it does not end."""
    end = time.monotonic() + _FREE_S
    while True:
        ended = run_tool(("umount", now.target), fsck.UMOUNT_S)
        if ended.status != _BUSY or time.monotonic() > end:
            break
        time.sleep(0.1)
    if ended.status == _BUSY:
        who = ", ".join(user.who for user in units.users_of(now.device, now.target))
        raise OSError(errno.EBUSY, f"{ended.text}; {who or 'nobody is seen using it'}", now.target)
    ended.checked()


def _wait_until_free(device: str) -> None:
    """A device that nobody has for himself. Raises OSError (EBUSY) naming namespaces that still mount it."""
    end = time.monotonic() + _FREE_S
    while True:
        try:
            os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return
        if time.monotonic() > end:
            number = Path(device).stat().st_rdev
            who = units.mounted_for(f"{os.major(number)}:{os.minor(number)}")
            raise OSError(errno.EBUSY, f"still mounted for {'; '.join(who) or 'somebody unseen'}", device)
        time.sleep(0.05)


def _mount_unit(target: str) -> str:
    ended = run_tool(("systemd-escape", "--path", "--suffix=mount", target), units.SYSTEMCTL_S).checked()
    return ended.text.strip()


def _mount(wanted: Mounted) -> None:
    """Mount as before: by its unit where somebody wrote one down (fstab counts), else by the options it had."""
    unit = _mount_unit(wanted.target)
    if units.has_file(unit):
        run_tool(("systemctl", "start", unit), fsck.MOUNT_S).checked()
        return
    words = [word for word in wanted.options.split(",") if word and word not in _SHOWN_ONLY]
    options = ("-o", ",".join(words)) if words else ()
    run_tool(("mount", "-t", wanted.fstype, *options, wanted.source, wanted.target), fsck.MOUNT_S).checked()
