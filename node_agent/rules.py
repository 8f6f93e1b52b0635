"""The words of the rule table: which calls of whom answer what, when. `ebpf.loader` brings it to a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.schedule import ScheduleValue

Flavour = Literal["lsm", "fmod_ret", "cgroup", "override_fmod_ret", "override_kprobe"]
"""How a program is attached: to security hooks (two), socket hooks of control groups, system calls (two)."""

Kind = Literal[
    "regular", "directory", "block", "character", "pipe", "socket", "other", "thread", "process"
]  # fmt: skip
"""What a call is about: a kind of file, or of fork."""

CALL_BASE = 4096
"""Operations from here on are single system calls: this plus the number of the call on x86-64."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Scope(_Value):
    """Whose calls. Known to the kernel by cgroup or process; `cgroup` is a path below the cgroup root; `also` more
    of them, where a unit stands for several.

    unit: the cgroup of that path whenever it exists. cgroup: this one, and those below it. process: one thread
    group. tree: a process, its children and theirs from now on, wherever they are moved. `started` is the start
    time of the process in clock ticks since boot, so that a number used again is not taken for it.
    """

    kind: Literal["unit", "cgroup", "process", "tree"]
    name: str
    cgroup: str = ""
    also: tuple[str, ...] = ()
    pid: int = 0
    started: int = 0


class Root(_Value):
    """A directory or file as the kernel knows it: `device` is s_dev, major << 20 | minor."""

    device: int
    inode: int


class Match(_Value):
    """Which of these calls: every field that is set must fit. Sizes in bytes; `call` is a system call's number.

    A file matches `roots` when the names on the way up from it fit `parts` (last first; * and ? are wildcards) and
    a root comes next, at once or after any number of directories.
    """

    kinds: tuple[Kind, ...] = ()
    device: int | None = None
    roots: tuple[Root, ...] = Field(default=(), max_length=4)
    parts: tuple[str, ...] = Field(default=(), max_length=4)
    any_depth: bool = True
    family: int | None = None
    address: str = ""
    port: int | None = None
    min_size: int = 0
    open_flags: int = 0
    call: int | None = None


class Hook(_Value):
    """A place in the kernel where a rule may speak. The last two fields are for system calls by name."""

    name: str
    flavour: Flavour
    operation: int = 0
    has_descriptor: bool = False

    def __str__(self) -> str:
        return f"{self.flavour}/{self.name}"


class Rule(_Value):
    """One line of the rule table. `errno` 0: the call goes on (for `signal`); `budget` 0: no limit of hits."""

    operations: tuple[int, ...]
    hooks: tuple[Hook, ...]
    scope: Scope
    match: Match = Match()
    errno: int = Field(default=0, ge=0, le=4095)
    signal: int = Field(default=0, ge=0, le=64)
    schedule: ScheduleValue = ScheduleValue()
    seed: int = 0
    budget: int = Field(default=0, ge=0, lt=2**63)


@dataclass(frozen=True)
class Sample:
    """A hit as it came out of the ring buffer. `time_us` since boot, suspended time included."""

    sequence: int
    time_us: int
    operation: int
    pid: int
    tid: int
    errno: int
    comm: str
    where: str


@dataclass(frozen=True)
class RuleState:
    """What the kernel says of a rule just now. `members` are the cgroups and processes in its scope."""

    attached: bool
    members: int
    counters: Mapping[str, int]
    missing: tuple[str, ...] = ()
