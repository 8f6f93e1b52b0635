"""The rule engine of one node: what `node_agent.host` calls `bpf`.

Programs are loaded when first wanted and stay loaded; a hook is attached only while some rule needs it, so a node
without rules pays nothing. Nothing is pinned: when this process ends, however it ends, the kernel detaches
everything. Making an engine touches nothing.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from ebpf.loader import abi
from ebpf.loader.hints import Hints
from ebpf.loader.hooks import Hooks
from ebpf.loader.libbpf import BpfError, Link, Map, Object, RingBuffer, all_links
from ebpf.loader.table import RuleTable
from node_agent.errors import ApplyError
from node_agent.host.steady import steady_s
from node_agent.rules import Hook, Rule, RuleState, Sample

GRACE_S = 60.0
"""A new rule ends by itself after this long unless it is held: the agent may die before it says how long."""

DESCRIPTORS = 16384
"""Each loaded program costs eleven, and rules of all families and calls at once want hundreds of programs."""

_SHARED = ("config", "cgroups", "processes", "awaited", "bindings", "rules", "counters", "samples", ".data.hints")
_KEPT_SAMPLES = 64


def objects_dir() -> Path:
    """Where the compiled objects are: beside this package, put there when it was built."""
    return Path(str(resources.files("ebpf").joinpath("objects")))


def cgroup_root(mounts: str) -> Path:
    """Where the cgroup2 hierarchy is mounted, from the text of /proc/self/mounts.

    The usual place where it is nowhere: processes and trees are hit without.
    """
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return Path("/sys/fs/cgroup")


class Engine:
    """Rules in and out of the kernel. Thread-safe."""

    def __init__(self, objects: Path | None = None) -> None:
        self._objects = objects or objects_dir()
        self._lock = threading.RLock()
        self._table: RuleTable | None = None
        self._hooks: Hooks | None = None
        self._base: Object | None = None
        self._ring: RingBuffer | None = None
        self._tracking: list[Link] = []
        self._members: Object | None = None
        self._recent: dict[str, deque[Sample]] = {}
        self._sequence = 0

    # -- looking ---------------------------------------------------------------------------------------------

    def tags(self) -> tuple[str, ...]:
        """The rules that are in the kernel."""
        with self._lock:
            return self._table.tags() if self._table else ()

    def state(self, tag: str) -> RuleState | None:
        """A rule as the kernel has it; None where it is not there."""
        with self._lock:
            rule = self._table.rule(tag) if self._table else None
            if rule is None or self._table is None or self._hooks is None:
                return None
            missing = tuple(str(h) for h in rule.hooks if not self._hooks.serves(h))
            return RuleState(
                attached=not missing, members=self._table.members(tag), counters=self._table.counters(tag),
                missing=missing,
            )  # fmt: skip

    def samples(self, tag: str) -> Sequence[Sample]:
        """The latest hits of a rule, oldest first."""
        with self._lock:
            self._drain()
            return tuple(self._recent.get(tag, ()))

    def links(self) -> Mapping[str, str]:
        """Every BPF link of the machine with the name of its program; ours also with the tags they serve."""
        with self._lock:
            try:
                found = all_links()
            except OSError:
                return {}  # no libbpf, or a kernel without links: nothing of ours can be there
            ours = {link.id for link in self._tracking} | (self._hooks.link_ids() if self._hooks else set())
            tags = " ".join(self.tags()) or "groundfault-rules"
            return {f"link {i}": f"{name} {tags}" if i in ours else name for i, name in found.items()}

    def refusal(self, hook: Hook) -> str:
        """Why this kernel will not load the program of a hook; empty where it does. Loads it."""
        with self._lock:
            try:
                self._ready().load(hook)
            except (BpfError, OSError) as error:
                return str(error)
            return ""

    # -- changing --------------------------------------------------------------------------------------------

    def add(self, tag: str, rule: Rule) -> None:
        """Put a rule in force, for :data:`GRACE_S` unless it is held. One that is there already stays.

        Raises :class:`ApplyError` or OSError; the rule is then not there.
        """
        with self._lock:
            hooks = self._ready()
            assert self._table is not None
            if tag in self._table.tags():
                return
            wanted: list[Hook] = []
            try:
                self._track()
                self._table.add(tag, rule, _now_ns())
                for hook in rule.hooks:
                    hooks.want(hook)
                    wanted.append(hook)
                self._table.hold(tag, _now_ns() + int(GRACE_S * 1e9))
            except (OSError, ApplyError):
                self._take_out(tag, wanted)
                raise

    def hold(self, tag: str, expires: float) -> None:
        """Let a rule bite until `expires`, seconds since boot. Absent is fine."""
        with self._lock:
            if self._table and tag in self._table.tags():
                self._table.hold(tag, deadline_ns(expires, steady_s(), _now_ns()))

    def remove(self, tag: str) -> None:
        """Take a rule out, and detach what no other rule needs. Absent is fine."""
        with self._lock:
            rule = self._table.rule(tag) if self._table else None
            if rule:
                self._take_out(tag, rule.hooks)

    def close(self) -> None:
        """Detach and unload everything. For tests: the end of the process does the same."""
        with self._lock:
            for tag in self.tags():
                self.remove(tag)
            if self._table:
                self._table.hints.close()
            for one in (self._hooks, self._members, self._base):
                if one:
                    one.close()
            self._table = self._hooks = self._base = self._members = self._ring = None

    # -- inside ----------------------------------------------------------------------------------------------

    def _ready(self) -> Hooks:
        if self._hooks is not None:
            return self._hooks
        _allow_descriptors(DESCRIPTORS)
        root = cgroup_root(Path("/proc/self/mounts").read_text())
        content = (self._objects / "rules.bpf.o").read_bytes()
        base = Object(content, "rules")
        base.load()  # no program is chosen: this makes the maps
        maps = {name: base.map(name) for name in _SHARED}
        self._base = base
        self._ring = RingBuffer(maps["samples"])
        self._table = RuleTable(maps, Hints(maps[".data.hints"].fd), root, os.getpid())
        self._hooks = Hooks(content, lambda: [Map(m.fd, m.name) for m in maps.values()], root)
        return self._hooks

    def _track(self) -> None:
        """Have the kernel keep the members up to date while there are any."""
        assert self._table is not None
        if self._tracking:
            return
        if self._members is None:
            members = Object((self._objects / "members.bpf.o").read_bytes(), "members")
            for program in members.programs.values():
                program.choose()
            for name in ("cgroups", "processes", "awaited", ".data.hints"):
                members.share(self._table.maps[name])
            members.load()
            self._members = members
        self._tracking = [program.attach() for program in self._members.programs.values()]

    def _take_out(self, tag: str, wanted: Sequence[Hook]) -> None:
        """The end of a rule for which these hooks were wanted."""
        assert self._table is not None and self._hooks is not None
        self._table.remove(tag)
        self._recent.pop(tag, None)
        for hook in wanted:
            self._hooks.release(hook)
        if not self._table.needs_tracking():
            while self._tracking:
                self._tracking.pop().destroy()

    def _drain(self) -> None:
        if self._ring is None or self._table is None:
            return
        for raw in self._ring.drain():
            entry = abi.SampleEntry.from_buffer_copy(raw)
            tag = self._table.tag_at(entry.slot)
            if tag is None:
                continue
            self._sequence += 1
            sample = Sample(
                sequence=self._sequence, time_us=entry.time_ns // 1000, operation=entry.operation, pid=entry.pid,
                tid=entry.tid, errno=-entry.answer, comm=entry.comm.decode(errors="surrogateescape"),
                where=entry.where(),
            )  # fmt: skip
            self._recent.setdefault(tag, deque(maxlen=_KEPT_SAMPLES)).append(sample)


def _allow_descriptors(wanted: int) -> None:
    """Raise this process's own limit, as far as it may: services begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def deadline_ns(expires: float, steady: float, now_ns: int) -> int:
    """When a rule ends by the kernel's boot clock, which may go at another rate than the hardware's.

    Never below 0: the kernel reads it without a sign, and would take that for centuries.
    """
    return max(0, now_ns + int((expires - steady) * 1e9))


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
