"""Control groups whose memory or processes a fault limits: found by unit, path or container. Only looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field

import node_agent
from node_agent.errors import Refusal
from node_agent.fault import Facts
from node_agent.host import Reader
from node_agent.scopes import PROTECTED_UNITS, ScopeFields, cgroup_root, find_scope
from node_agent.steps.cgroup_limit import CgroupLimit, LimitFile
from node_agent.steps.helper_process import Claim, HelperProcess

PAGE = 4096
KIB, MIB = 1 << 10, 1 << 20
_KEPT = ("anon", "shmem", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "sock", "slab_unreclaimable")
"""Lines of memory.stat that the kernel cannot take back where there is no swap (cgroup-v2.rst)."""


class GroupFields(BaseModel):
    """The parameters that say whose. None: the whole node, where a fault can do that."""

    unit: str = Field(default="", description="systemd unit, through its restarts; .service may be left out")
    cgroup: str = Field(default="", description="control group, by its path below the cgroup root")
    container: str = Field(default="", description="container by id or name: containerd, CRI-O, Docker, Podman")

    @property
    def names_a_group(self) -> bool:
        """Whether one is named at all."""
        return bool(self.unit or self.cgroup or self.container)


class Group(BaseModel):
    """A control group: `path` is where its files are, `unit` the name of its service, if it is one's.

    `inode` is its number: one that is made anew, as by a restart, has another. `limits` are those it has now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    title: str
    unit: str
    inode: int
    limits: Mapping[str, str]

    @property
    def below_root(self) -> str:
        """Its path as the kernel writes it in its log."""
        return self.path.removeprefix("/sys/fs/cgroup")


def find_group(reader: Reader, facts: Facts, wanted: GroupFields) -> Group:
    """The control group that the parameters name.

    Raises :class:`Refusal` as :func:`node_agent.scopes.find_scope` does, and where nobody is in it now.
    """
    fields = ScopeFields(unit=wanted.unit, cgroup=wanted.cgroup, container=wanted.container)
    scope = find_scope(reader, facts, fields)
    field = next(name for name in ("unit", "cgroup", "container") if getattr(wanted, name))
    if scope.also:
        names = ", ".join(PurePosixPath(path).name for path in (scope.cgroup, *scope.also))
        raise Refusal(f"{field}: {scope.name} stands for several", field=field, allowed=f"one of: {names}")
    if scope.pid:
        raise Refusal(f"{field}: {scope.name} has no control group of version 2", field=field, allowed="unit")
    group = group_at(reader, f"{cgroup_root(facts, field)}{scope.cgroup}", scope.name)
    if not processes_of(reader, group.path):
        raise Refusal(f"{field}: {scope.name} has no processes", field=field, allowed="one that runs")
    return group


def group_at(reader: Reader, path: str, title: str) -> Group:
    """The control group of a folder."""
    name, info = PurePosixPath(path).name, reader.file_info(path)
    unit = name if name.endswith(".service") else ""
    files = [file for file in get_args(LimitFile) if reader.exists(f"{path}/{file}")]
    limits = {file: reader.read_text(f"{path}/{file}").strip() for file in files}
    return Group(path=path, title=title, unit=unit, inode=info.inode if info else 0, limits=limits)


def group_of_process(reader: Reader, facts: Facts, pid: int) -> Group:
    """The control group of a process. Raises :class:`Refusal` where it is one that must go on."""
    find_scope(reader, facts, ScopeFields(pid=pid))
    lines = reader.read_text(f"/proc/{pid}/cgroup").splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    if path == "/" or any(part in PROTECTED_UNITS for part in path.split("/")):
        raise Refusal(f"pid: {pid} is in control group {path}", field="pid", allowed="a process of another one")
    return group_at(reader, f"{cgroup_root(facts, 'pid')}{path}", f"cgroup {path}")


def own_kib(reader: Reader, pid: int) -> int:
    """Anonymous memory of a process in RAM: resident less shared of proc_pid_statm(5). 0 where it has ended."""
    with suppress(OSError):
        _, resident, shared, *_ = reader.read_text(f"/proc/{pid}/statm").split()
        return (int(resident) - int(shared)) * (PAGE // KIB)
    return 0


def processes_of(reader: Reader, group: str) -> tuple[int, ...]:
    """Everybody in it and below."""
    pids: set[int] = set()
    for path in {f"{group}/cgroup.procs", *reader.glob(f"{group}/**/cgroup.procs")}:
        with suppress(OSError):
            pids |= {int(word) for word in reader.read_text(path).split()}
    return tuple(sorted(pids))


def numbers(reader: Reader, path: str) -> dict[str, int]:
    """A file of lines "word number"; empty where it is not there."""
    try:
        lines = [line.split() for line in reader.read_text(path).splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def number(reader: Reader, path: str) -> int:
    """A file of one number; 0 where it is not there or says max."""
    try:
        text = reader.read_text(path).strip()
    except OSError:
        return 0
    return int(text) if text.removeprefix("-").isdigit() else 0


def kept_bytes(reader: Reader, group: Group) -> int:
    """Memory of a control group that the kernel cannot take back, but to swap."""
    stat = numbers(reader, f"{group.path}/memory.stat")
    return sum(stat.get(name, 0) for name in _KEPT)


def meminfo_kib(reader: Reader, name: str) -> int:
    """A line of /proc/meminfo, in KiB (proc_meminfo(5))."""
    for line in reader.read_text("/proc/meminfo").splitlines():
        words = line.split()
        if words and words[0] == f"{name}:":
            return int(words[1])
    return 0


def stalled_us(reader: Reader, path: str) -> int:
    """How long somebody waited for memory: `some … total` of a pressure file (accounting/psi.rst)."""
    with suppress(OSError):
        for line in reader.read_text(path).splitlines():
            if line.startswith("some "):
                return int(line.rpartition("total=")[2])
    return 0


def has_swap(reader: Reader) -> bool:
    """Whether the node swaps anywhere."""
    return reader.exists("/proc/swaps") and len(reader.read_text("/proc/swaps").splitlines()) > 1


def whole_pages(size: int) -> int:
    """Bytes of the whole pages in it: what the kernel makes of a limit."""
    return size // PAGE * PAGE


def limit(group: Group, file: LimitFile, value: int) -> CgroupLimit:
    """The step."""
    return CgroupLimit(
        group=group.path, file=file, value=value, unit=group.unit, default=group.limits.get(file, "max")
    )


def keeper(tag: str, group: Group, limits: Sequence[CgroupLimit]) -> HelperProcess:
    """A process that sets limits again where the control group is made anew, as by a restart. The last step."""
    payload = {"mode": "keep", "inode": group.inode, "limits": {one.path: str(one.value) for one in limits}}
    return stressor(tag, "limits", "set the limit again after a restart", payload)


def stressor(
    tag: str, program: str, title: str, payload: Mapping[str, Any], *, claims: Sequence[str] = (),
    ready_s: float = 60.0,
) -> HelperProcess:  # fmt: skip
    """One of the programs of node_agent/stressors. `claims`: what only one injection may use up."""
    script = Path(node_agent.__file__).parent / "stressors" / f"{program}.py"
    return HelperProcess(
        name=tag, title=title, argv=(sys.executable, "-I", "-S", str(script)), payload=json.dumps(payload),
        ready_s=ready_s, claims=tuple(Claim(kind="value", name=name) for name in claims),
    )  # fmt: skip


NODE_MEMORY = "memory of the node"
"""What a fault claims that uses up the memory of everybody."""


def answers_of(reader: Reader, tag: str) -> dict[str, int]:
    """The counters of a helper; empty where it has ended or is too busy to answer."""
    try:
        found = json.loads(reader.helpers.ask(tag, "counters"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, int)}


def helpers_root(facts: Facts) -> str:
    """Below what the control groups of helpers are; empty where there are none of version 2."""
    return next((m.target for m in facts.mounts if m.fstype == "cgroup2"), "")


def end_of_helper(reader: Reader, root: str, tag: str) -> str:
    """Why a helper is no more, in words; empty while it runs. `root`: :func:`helpers_root`."""
    if reader.helpers.pids(tag):
        return ""
    killed = numbers(reader, f"{root}/{tag}/memory.events").get("oom_kill", 0)
    if killed:
        return "the kernel was out of memory and killed the process of this injection: nothing is used up any more"
    return f"the process of this injection has ended: {reader.helpers.complaint(tag) or 'no message'}"
