"""The edge between the agent and the machine: every touch of the world goes through these protocols.

`Reader` only looks, `Host` also changes. The real one is :class:`node_agent.host.real.RealHost`; tests put
a simulated kernel in its place, so that a fault's whole life runs without root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from node_agent.host.clock import Clock, ClockReader
from node_agent.host.flows import Flows, FlowsReader
from node_agent.host.frames import FramesReader
from node_agent.host.links import Links, LinksReader
from node_agent.host.mounting import Filesystems, FilesystemsReader
from node_agent.host.processes import Processes, Services, ServicesReader
from node_agent.host.room import Space, SpaceReader, Stops, StopsReader
from node_agent.host.routing import Routing, RoutingReader
from node_agent.host.settings import Settings, SettingsReader
from node_agent.rules import Hook, Rule, RuleState, Sample

SECTOR = 512
"""Bytes in the sectors that device-mapper tables and the block layer count in, whatever the disk's own size."""


@dataclass(frozen=True)
class DmTarget:
    """One line of a device-mapper table. `start` and `length` in 512-byte sectors."""

    start: int
    length: int
    kind: str
    args: str


@dataclass(frozen=True)
class DmInfo:
    """A device-mapper device as the kernel reports it. `number` is "major:minor"."""

    name: str
    number: str
    open_count: int
    suspended: bool


@dataclass(frozen=True)
class Extent:
    """A piece of a file as FIEMAP reports it, in bytes; `flags` are the FIEMAP_EXTENT_* names, lower case."""

    logical: int
    physical: int
    length: int
    flags: frozenset[str]


@dataclass(frozen=True)
class FileInfo:
    """What stat says of a path, links not followed in the last component."""

    kind: str  # "file", "directory", "symlink", "other"
    size: int
    device: str  # "major:minor" of the file system's device
    inode: int


@dataclass(frozen=True)
class LogRecord:
    """One kernel log record. `time_us` is microseconds since boot."""

    sequence: int
    time_us: int
    level: int
    text: str


@dataclass(frozen=True)
class LoopInfo:
    """A bound loop device. `backing` is what the kernel reports as its backing file."""

    path: str
    number: str
    backing: str


class DmReader(Protocol):
    """Reading device mapper. Names are the part after /dev/mapper/."""

    def list(self) -> Sequence[DmInfo]: ...
    def info(self, name: str) -> DmInfo | None: ...
    def table(self, name: str) -> tuple[DmTarget, ...]: ...
    def status(self, name: str) -> tuple[DmTarget, ...]: ...


class Dm(DmReader, Protocol):
    """Changing device mapper."""

    def has_target(self, kind: str) -> bool:
        """Whether the kernel has a target of this kind. Loads its module."""

    def create(self, name: str, table: Sequence[DmTarget], *, public: bool = False) -> DmInfo:
        """Make a device and resume it. A device of that name with the same table is left as it is.

        `public`: for people, so that udev looks into it and gives it its links.
        """

    def swap(self, name: str, table: Sequence[DmTarget]) -> None:
        """Replace the live table under I/O, in one suspend and resume. Bounded; on failure the old one stays."""

    def message(self, name: str, sector: int, text: str) -> str: ...

    def remove(self, name: str) -> None:
        """Remove a device; gone already is fine. Retries EBUSY within a bound, then says who holds it."""


class LoopReader(Protocol):
    def list(self) -> Sequence[LoopInfo]: ...


class Loop(LoopReader, Protocol):
    def attach(self, backing: str, *, direct_io: bool, read_only: bool = False) -> LoopInfo:
        """Bind a free loop device to `backing`; one already bound to it is returned."""

    def detach(self, backing: str) -> None:
        """Unbind every loop device over `backing`; none is fine. Bounded."""


class DiskReader(Protocol):
    def extents(self, path: str, *, sync: bool = True) -> Sequence[Extent]:
        """FIEMAP, by default with SYNC: dirty data gets its place first."""

    def block_size(self, path: str) -> int: ...

    def size_sectors(self, number: str) -> int:
        """Size of block device "major:minor" in 512-byte sectors."""

    def direct_read(self, path: str, offset: int, length: int) -> bytes:
        """O_DIRECT read of a file or device. Raises OSError with the kernel's errno."""

    def cached(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Those of these (offset, length) byte ranges that have a page in the page cache."""


class Disk(DiskReader, Protocol):
    def drop_pages(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Write back, then evict only the pages of these (offset, length) byte ranges; returns what stayed."""


class LogReader(Protocol):
    def mark(self) -> int:
        """The sequence number the next kernel log record will have."""

    def since(self, mark: int) -> tuple[Sequence[LogRecord], int]:
        """Records from `mark` on, and how many the ring buffer lost in between."""


class HelpersReader(Protocol):
    """Looking at the processes of injections, by the name that :meth:`Helpers.start` gave them."""

    def pids(self, name: str) -> Sequence[int]:
        """The processes of a helper, whoever started them; empty when it has ended."""

    def traces(self, name: str) -> Sequence[str]:
        """What is there of it, in words: processes and its control group."""

    def ask(self, name: str, request: str, *, timeout_s: float = 5.0) -> str:
        """The line with which a helper of this agent answers a line. Raises OSError where it has ended."""

    def complaint(self, name: str) -> str:
        """The last lines of its standard error; empty where this agent did not start it."""


class Helpers(HelpersReader, Protocol):
    """Starting and ending them."""

    def start(self, name: str, argv: Sequence[str], *, payload: str, ready: str, ready_s: float) -> None:
        """Start a program that dies with the agent; give it a line, if any, and wait for its line `ready`.

        Raises :class:`HelperFailed` where that does not come; what has started is then still to be stopped.
        """

    def stop(self, name: str) -> None:
        """End all its processes, politely first, and wait; none is fine. Raises OSError where one does not end."""


class BpfReader(Protocol):
    """Looking at the rule table, and at what is attached in the kernel."""

    def state(self, tag: str) -> RuleState | None:
        """A rule as the kernel has it; None where it is not there."""

    def samples(self, tag: str) -> Sequence[Sample]:
        """The latest hits of a rule, oldest first."""

    def links(self) -> Mapping[str, str]:
        """Every BPF link of the machine and the name of its program; ours also with the tags they serve."""

    def refusal(self, hook: Hook) -> str:
        """Why this kernel will not load the program of a hook; empty where it does."""


class Bpf(BpfReader, Protocol):
    """Changing the rule table."""

    def add(self, tag: str, rule: Rule) -> None:
        """Put a rule in force, for a minute unless it is held. One that is there already stays."""

    def hold(self, tag: str, expires: float) -> None:
        """Let a rule bite until `expires`, seconds since boot. Absent is fine."""

    def remove(self, tag: str) -> None:
        """Take a rule out, and detach what no other rule needs. Absent is fine."""


class NetworkReader(Protocol):
    def qdiscs(self) -> str:
        """What `tc qdisc show` says; empty where there is no tc."""

    def ruleset(self) -> str:
        """What `nft -s list ruleset` says; empty where there is no nft."""

    def rule_counters(self, family: str, table: str) -> Mapping[str, tuple[int, int]]:
        """Packets and bytes of the named counters of a netfilter table; none where there is no such table."""


class Network(NetworkReader, Protocol):
    def load_rules(self, script: str) -> None:
        """Change the netfilter ruleset by commands of nft(8), one a line: all of them at once, or none.

        Raises :class:`CommandError`.
        """


class Reader(Protocol):
    """The machine, read only."""

    @property
    def dm(self) -> DmReader: ...
    @property
    def loop(self) -> LoopReader: ...
    @property
    def disk(self) -> DiskReader: ...
    @property
    def log(self) -> LogReader: ...
    @property
    def helpers(self) -> HelpersReader: ...
    @property
    def bpf(self) -> BpfReader: ...
    @property
    def network(self) -> NetworkReader: ...
    @property
    def links(self) -> LinksReader: ...
    @property
    def filesystems(self) -> FilesystemsReader: ...
    @property
    def space(self) -> SpaceReader: ...
    @property
    def stops(self) -> StopsReader: ...
    @property
    def frames(self) -> FramesReader: ...
    @property
    def routing(self) -> RoutingReader: ...
    @property
    def flows(self) -> FlowsReader: ...
    @property
    def settings(self) -> SettingsReader: ...
    @property
    def clock(self) -> ClockReader: ...
    @property
    def services(self) -> ServicesReader: ...
    def read_text(self, path: str) -> str:
        """A whole text file. Raises OSError."""

    def exists(self, path: str) -> bool: ...
    def listdir(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; an absent directory is empty."""

    def glob(self, pattern: str) -> Sequence[str]:
        """Paths that match, sorted; `**` crosses directories."""

    def file_info(self, path: str) -> FileInfo | None: ...
    def realpath(self, path: str) -> str: ...
    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        """Standard output of a command that only looks; None where it is absent or fails."""

    def boottime(self) -> float:
        """Seconds since boot, suspended time included, as the hardware counts them: nobody steps or hurries it."""

    def boot_id(self) -> str: ...


class Host(Protocol):
    """The machine, to be changed. Everything a `Reader` has, and the changes."""

    @property
    def dm(self) -> Dm: ...
    @property
    def loop(self) -> Loop: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def log(self) -> LogReader: ...
    @property
    def helpers(self) -> Helpers: ...
    @property
    def bpf(self) -> Bpf: ...
    @property
    def network(self) -> Network: ...
    @property
    def links(self) -> Links: ...
    @property
    def filesystems(self) -> Filesystems: ...
    @property
    def space(self) -> Space: ...
    @property
    def stops(self) -> Stops: ...
    @property
    def frames(self) -> FramesReader: ...
    @property
    def routing(self) -> Routing: ...
    @property
    def flows(self) -> Flows: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def services(self) -> Services: ...
    @property
    def processes(self) -> Processes: ...
    def read_text(self, path: str) -> str: ...
    def exists(self, path: str) -> bool: ...
    def listdir(self, path: str) -> Sequence[str]: ...
    def glob(self, pattern: str) -> Sequence[str]: ...
    def file_info(self, path: str) -> FileInfo | None: ...
    def realpath(self, path: str) -> str: ...
    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None: ...
    def boottime(self) -> float: ...
    def boot_id(self) -> str: ...
    def run(self, argv: tuple[str, ...], *, timeout_s: float = 30.0) -> str:
        """Run a command that changes something. Raises :class:`CommandError`."""

    def write_text(self, path: str, text: str) -> None:
        """Write a text file in one call, as files of the kernel want it; one that is not there is made.

        Raises OSError with what the kernel says of the text.
        """

    def remove_file(self, path: str) -> None:
        """Remove a file; gone already is fine."""

    def make_file(self, path: str, size_bytes: int) -> None:
        """Make a file of so many zeros, without blocks of its own. Raises FileExistsError."""

    def set_time(self, unix_s: float) -> None:
        """Set the wall clock. The monotonic clocks are not touched."""


class CommandError(Exception):
    """A command ended with a status other than 0, or not in time."""

    def __init__(self, argv: tuple[str, ...], status: int | None, stderr: str) -> None:
        what = "did not end in time" if status is None else f"ended with status {status}"
        super().__init__(f"{' '.join(argv)} {what}: {stderr.strip() or 'no message'}")
        self.argv, self.status, self.stderr = argv, status, stderr


class HelperFailed(Exception):
    """A helper ended before it was ready (`status`; minus a signal's number), or was not in time (None)."""

    def __init__(self, program: str, status: int | None, complaint: str) -> None:
        what = "was not ready in time" if status is None else f"ended with status {status}"
        super().__init__(f"{program} {what}: {complaint or 'no message'}")
        self.program, self.status, self.complaint = program, status, complaint

    def told(self) -> str:
        """What to tell of it: a helper that ends with status 1 has given its reason."""
        return self.complaint if self.status == 1 and self.complaint else str(self)
