"""The real machine behind :class:`node_agent.host.Host`."""

from __future__ import annotations

import glob
import os
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from ebpf.loader.engine import Engine
from node_agent.host import CommandError, FileInfo
from node_agent.host.disk import Disks
from node_agent.host.dm import DeviceMapper
from node_agent.host.filesystem import FileSystems
from node_agent.host.flows import KernelFlows
from node_agent.host.helpers import HelperProcesses
from node_agent.host.log import KernelLog
from node_agent.host.loop import LoopDevices
from node_agent.host.network import NetworkState
from node_agent.host.physical import PhysicalMemory
from node_agent.host.rtlinks import KernelLinks
from node_agent.host.rtnetlink import KernelRouting
from node_agent.host.services import SystemdUnits
from node_agent.host.settings import ConfigFiles
from node_agent.host.signals import ProcessSignals
from node_agent.host.space import FileSystemSpace
from node_agent.host.steady import steady_s
from node_agent.host.stopping import FileSystemStops
from node_agent.host.system_clock import SystemClock

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class RealHost:
    """This machine. Needs root for nearly everything; making one touches nothing."""

    def __init__(self) -> None:
        self.dm = DeviceMapper()
        self.loop = LoopDevices()
        self.disk = Disks()
        self.log = KernelLog()
        self.helpers = HelperProcesses()
        self.bpf = Engine()
        self.filesystems = FileSystems()
        self.network = NetworkState(self.query)
        self.links = KernelLinks(self.run)
        self.space = FileSystemSpace()
        self.stops = FileSystemStops()
        self.frames = PhysicalMemory()
        self.routing = KernelRouting()
        self.flows = KernelFlows()
        self.settings = ConfigFiles()
        self.clock = SystemClock()
        self.services = SystemdUnits(self.query)
        self.processes = ProcessSignals()

    def read_text(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def listdir(self, path: str) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def glob(self, pattern: str) -> Sequence[str]:
        # pathlib's glob has no include_hidden and wants a relative pattern
        return sorted(glob.glob(pattern, recursive=True, include_hidden=True))  # noqa: PTH207

    def file_info(self, path: str) -> FileInfo | None:
        try:
            st = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"))
        kind = next((name for test, name in kinds if test(st.st_mode)), "other")
        device = f"{os.major(st.st_dev)}:{os.minor(st.st_dev)}"
        return FileInfo(kind=kind, size=st.st_size, device=device, inode=st.st_ino)

    def realpath(self, path: str) -> str:
        return os.path.realpath(path)

    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        try:
            return self.run(argv, timeout_s=timeout_s)
        except (CommandError, FileNotFoundError, PermissionError):
            return None

    def run(self, argv: tuple[str, ...], *, timeout_s: float = 30.0) -> str:
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CommandError(argv, None, f"{timeout_s:g} s") from None
        if done.returncode:
            raise CommandError(argv, done.returncode, done.stderr)
        return done.stdout

    def boottime(self) -> float:
        return steady_s()

    def boot_id(self) -> str:
        return self.read_text("/proc/sys/kernel/random/boot_id").strip()

    def write_text(self, path: str, text: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)

    def make_file(self, path: str, size_bytes: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)

    def remove_file(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def set_time(self, unix_s: float) -> None:
        time.clock_settime(time.CLOCK_REALTIME, unix_s)
