"""A simulated machine: enough of device mapper, loop devices and files to live a fault's whole life without root.

Reads go through the tables like a kernel's do, so that a fault which is not wired up right does not bite here
either. Every change can be the last: `die_at` counts changes and then nothing works any more, as after SIGKILL.
"""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node_agent.host import SECTOR, CommandError, DmTarget, Extent, FileInfo, HelperFailed, LogRecord, LoopInfo
from node_agent.host.mounting import Mounted
from node_agent.host.settings import ConfigFile
from tests.contract import (
    cgroup_io,
    facilities,
    simulated_links,
    simulated_machine,
    simulated_memory,
    simulated_netfilter,
    simulated_processes,
    simulated_settings,
)
from tests.contract.filesystems import SimulatedFilesystems
from tests.contract.rule_table import SimRule, SimulatedBpf, cgroup_texts, systemctl
from tests.contract.simulated_clock import SimClock, SimulatedClock
from tests.contract.simulated_disks import PLAIN, SimulatedDisks, SimulatedDm, SimulatedLoops
from tests.contract.simulated_links import SimNet, SimulatedRouting
from tests.contract.simulated_netfilter import SimNetfilter, SimulatedFlows, SimulatedRuleset
from tests.contract.simulated_network import SimShaping, SimulatedShaping, qdisc_lines
from tests.contract.simulated_processes import SimService, SimulatedProcesses, SimulatedServices
from tests.contract.simulated_settings import SimulatedSettings
from tests.contract.simulated_space import SimulatedSpace, SimulatedStops


class Killed(BaseException):
    """The agent's process is gone. Not an Exception: nothing may catch it and go on."""


@dataclass
class SimFile:
    """A file of the simulated data disk. `extents` in bytes."""

    size: int
    extents: list[Extent]
    device: str = "252:0"
    kind: str = "file"
    inode: int = 11


@dataclass
class SimHelper:
    """A helper process. It is there as long as the agent that started it is."""

    agent: SimulatedHost
    pid: int
    argv: tuple[str, ...]
    payload: str


@dataclass
class Kernel:
    """State that outlives the agent, and what a reboot leaves of it."""

    dm: dict[str, tuple[str, tuple[DmTarget, ...]]] = field(default_factory=dict)
    loops: dict[str, LoopInfo] = field(default_factory=dict)
    files: dict[str, SimFile] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    healed: set[tuple[str, int]] = field(default_factory=set)
    reads: dict[str, int] = field(default_factory=dict)
    log: list[LogRecord] = field(default_factory=list)
    helpers: dict[str, SimHelper] = field(default_factory=dict)
    rules: dict[str, SimRule] = field(default_factory=dict)
    helper_says: str = '{"counters": {"hits": 0}, "attached": 1}'
    helper_refuses: str = ""
    ailments: dict[str, dict[str, str]] = field(default_factory=dict)
    """By mount point: what a write would show."""
    lost: dict[str, list[str]] = field(default_factory=dict)
    begun: dict[str, Mounted] = field(default_factory=dict)
    reactions: dict[str, str] = field(default_factory=dict)
    """By mount point: what an error of the file system does, where that was set by hand."""
    services: dict[str, SimService] = field(default_factory=simulated_processes.services)
    netfilter: SimNetfilter = field(default_factory=SimNetfilter)
    shaping: SimShaping = field(default_factory=SimShaping)
    net: SimNet = field(default_factory=SimNet)
    config: dict[str, ConfigFile] = field(default_factory=simulated_settings.files)
    boot: int = 1
    clock: float = 1000.0
    wall: float = 1.8e9
    time: SimClock = field(default_factory=SimClock)
    next_minor: int = 1

    def reboot(self) -> None:
        """Power goes and comes back: device mapper is what provisioning sets up, /run is empty."""
        self.dm = {"data": ("252:0", PLAIN)}
        self.loops, self.healed, self.reads, self.log = {}, set(), {}, []
        gone = ("/run/", "/dev/shm/", "/sys/fs/cgroup/")
        self.texts = {p: text for p, text in self.texts.items() if not p.startswith(gone)}
        self.texts |= cgroup_texts() | cgroup_io.io_texts()
        facilities.boot(self.texts)
        simulated_processes.boot(self.texts)
        self.texts |= {**simulated_machine.FILES, **simulated_machine.SYSTEMD}
        simulated_memory.boot(self.texts)
        self.services = simulated_processes.services()
        self.helpers, self.rules, self.reactions = {}, {}, {}
        self.net = SimNet()
        self.texts |= simulated_settings.texts()
        self.netfilter, self.shaping = SimNetfilter(), SimShaping()
        self.boot, self.clock, self.next_minor = self.boot + 1, 10.0, 1
        self.time = SimClock(since=10.0, booted=10.0)


def fresh_kernel() -> Kernel:
    """A healthy node: one data disk on dm-linear at /srv/data with two files."""
    kernel = Kernel(dm={"data": ("252:0", PLAIN)})
    kernel.files = {
        "/srv/data": SimFile(4096, [], kind="directory"),
        "/srv/data/a": SimFile(64 * 1024, [Extent(0, 1024 * SECTOR, 64 * 1024, frozenset({"last"}))]),
        "/srv/data/b": SimFile(32 * 1024, [Extent(0, 4096 * SECTOR, 32 * 1024, frozenset({"last"}))], inode=12),
        "/etc/passwd": SimFile(4096, [Extent(0, 512 * SECTOR, 4096, frozenset({"last"}))], device="8:0", inode=13),
    }
    kernel.texts = {
        "/proc/meminfo": "MemTotal:        1000000 kB\nMemAvailable:     700000 kB\n",
        "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        "/etc/os-release": 'PRETTY_NAME="Simulated"\n',
        "/proc/self/mountinfo": "1 0 8:0 / / rw - ext4 /dev/sda rw\n"
        "2 1 252:0 / /srv/data rw - ext4 /dev/mapper/data rw\n"
        "3 1 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "4 1 0:30 / /dev/shm rw - tmpfs tmpfs rw\n",
        "/proc/self/mounts": "/dev/sda / ext4 rw 0 0\n/dev/mapper/data /srv/data ext4 rw 0 0\n",
        "/proc/sys/kernel/osrelease": "6.12.0-simulated\n",
        "/usr/lib/python3/dist-packages/bcc/__init__.py": "",
        "/lib/modules/6.12.0-simulated/build/Makefile": "",
        "/usr/lib/x86_64-linux-gnu/libbpf.so.1": "",
        "/sys/kernel/btf/vmlinux": "",
        "/usr/bin/strace": "",
        **cgroup_texts(),
        **cgroup_io.io_texts(),
        **facilities.facility_texts(),
        **facilities.process_texts(),
        **simulated_links.texts(),
        **simulated_netfilter.texts(),
        **simulated_settings.texts(),
        **simulated_processes.texts(),
        **simulated_machine.FILES,
        **simulated_machine.SYSTEMD,
        **simulated_memory.texts(),
        **simulated_memory.seen_texts(),
    }
    return kernel


class SimulatedHost:
    """One agent process on a :class:`Kernel`. `die_at`: the number of the change it dies before."""

    def __init__(self, kernel: Kernel, die_at: int = 0) -> None:
        self.kernel, self.die_at, self.changes, self.dead = kernel, die_at, 0, False
        self.dm, self.loop, self.disk, self.log = (
            SimulatedDm(self),
            SimulatedLoops(self),
            SimulatedDisks(self),
            _Log(self),
        )
        self.bpf = SimulatedBpf(self)
        self.helpers = _Helpers(self)
        self.filesystems = SimulatedFilesystems(self)
        self.network, self.links = _Network(self), SimulatedShaping(self)
        self.flows = SimulatedFlows(self)
        self.space, self.stops = SimulatedSpace(self), SimulatedStops(self)
        self.routing, self.settings = SimulatedRouting(self), SimulatedSettings(self)
        self.clock = SimulatedClock(self)
        self.frames = simulated_memory.SimulatedFrames(self)
        self.services, self.processes = SimulatedServices(self), SimulatedProcesses(self)

    def change(self) -> None:
        """Counts a change; dies when its number comes up, and stays dead."""
        self.changes += 1
        if self.dead or self.changes == self.die_at:
            self.dead = True
            raise Killed

    def alive(self) -> None:
        if self.dead:
            raise Killed

    def read_text(self, path: str) -> str:
        self.alive()
        if path not in self.kernel.texts:
            stat = self._block_stat(path)
            if stat is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return stat
        return self.kernel.texts[path]

    def _block_stat(self, path: str) -> str | None:
        parts = path.split("/")
        if path.endswith("/inflight"):
            return "0 0"
        if path.endswith("/stat") and "block" in path:
            number = next((p for p in parts if ":" in p), "")
            if not number:
                found = [i.number for i in self.kernel.loops.values() if i.path.rsplit("/", 1)[1] in parts]
                number = found[0] if found else ""
            if number:
                return f"{self.kernel.reads.get(number, 0)} 0 0 0 0 0 0 0 0 0 0"
        return None

    def write_text(self, path: str, text: str) -> None:
        self.change()
        if path.startswith(("/sys/", "/proc/")):
            text = text.removesuffix("\n")  # files of the kernel take lines, and these texts are without the end
        if simulated_memory.write(self.kernel, path, text) or simulated_processes.write(
            self.kernel.texts, path, text
        ):
            return
        if not (cgroup_io.write(self.kernel.texts, path, text) or facilities.write(self.kernel.texts, path, text)):
            self.kernel.texts[path] = text

    def make_file(self, path: str, size_bytes: int) -> None:
        self.change()
        self.kernel.texts[path] = ""

    def remove_file(self, path: str) -> None:
        self.change()
        self.kernel.texts.pop(path, None)

    def exists(self, path: str) -> bool:
        self.alive()
        return path in self.kernel.texts or path in self.kernel.files

    def listdir(self, path: str) -> Sequence[str]:
        paths = (*self.kernel.files, *self.kernel.texts)
        return sorted({p.removeprefix(f"{path}/").split("/")[0] for p in paths if p.startswith(f"{path}/")})

    def glob(self, pattern: str) -> Sequence[str]:
        flat = {pattern.replace("**/", some).replace("**", "*") for some in ("", "*/")}
        paths = {*self.kernel.files, *self.kernel.texts}
        return sorted(p for p in paths if any(fnmatch.fnmatch(p, one) for one in flat))

    def file_info(self, path: str) -> FileInfo | None:
        file = self.kernel.files.get(path)
        return FileInfo(file.kind, file.size, file.device, file.inode) if file else None

    def realpath(self, path: str) -> str:
        return path

    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        self.alive()
        return "2.41" if argv[1:] == ("--version",) else systemctl(argv)

    def run(self, argv: tuple[str, ...], *, timeout_s: float = 30.0) -> str:
        self.change()
        if argv[0] in ("/usr/bin/python3", "ip", "tc", "nft") or simulated_memory.run(self.kernel, argv):
            return ""
        raise CommandError(argv, 127, "not simulated")

    def boottime(self) -> float:
        return self.kernel.clock

    def boot_id(self) -> str:
        return f"boot-{self.kernel.boot}"

    def set_time(self, unix_s: float) -> None:
        self.clock.set_time(unix_s)


class _Network:
    """Qdiscs and netfilter rules as text."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h, self._rules = host, SimulatedRuleset(host)

    def qdiscs(self) -> str:
        return f"qdisc noqueue 0: dev lo root refcnt 2\n{qdisc_lines(self._h.kernel.shaping)}"

    def ruleset(self) -> str:
        return self._rules.text()

    def load_rules(self, script: str) -> None:
        self._rules.load(script)

    def rule_counters(self, family: str, table: str) -> Mapping[str, tuple[int, int]]:
        return self._rules.counters(family, table)


class _Log:
    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def mark(self) -> int:
        return len(self._h.kernel.log)

    def since(self, mark: int) -> tuple[Sequence[LogRecord], int]:
        return self._h.kernel.log[mark:], 0


class _Helpers:
    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def _running(self, name: str) -> SimHelper | None:
        found = self._h.kernel.helpers.get(name)
        return found if found and not found.agent.dead else None

    def pids(self, name: str) -> Sequence[int]:
        self._h.alive()
        running = self._running(name)
        return [running.pid] if running else []

    def traces(self, name: str) -> Sequence[str]:
        group = f"/sys/fs/cgroup/{name}"
        processes = [f"process {pid}" for pid in self.pids(name)]
        return (*processes, *((f"control group {group}",) if group in self._h.kernel.texts else ()))

    def ask(self, name: str, request: str, *, timeout_s: float = 5.0) -> str:
        self._h.alive()
        if self._running(name) is None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), name)
        return self._h.kernel.helper_says

    def complaint(self, name: str) -> str:
        return ""

    def start(self, name: str, argv: Sequence[str], *, payload: str, ready: str, ready_s: float) -> None:
        self._h.change()
        self._h.kernel.texts[f"/sys/fs/cgroup/{name}"] = ""
        self._h.change()
        if self._h.kernel.helper_refuses:
            raise HelperFailed(argv[0], 1, self._h.kernel.helper_refuses)
        pid = 5000 + len(self._h.kernel.helpers)
        self._h.kernel.texts[f"/proc/{pid}/fdinfo/5"] = "flags:\t02\nprog_type:\t29\nprog_id:\t7\n"
        self._h.kernel.helpers[name] = SimHelper(self._h, pid, tuple(argv), payload)
        simulated_memory.helper_started(self._h.kernel, payload)

    def stop(self, name: str) -> None:
        self._h.change()
        self._h.kernel.helpers.pop(name, None)
        self._h.change()
        self._h.kernel.texts.pop(f"/sys/fs/cgroup/{name}", None)
