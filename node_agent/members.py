"""The processes of a scope, each with its start time so that no later one is taken for it. Only looks.

What control needs is never among them: pid 1, threads of the kernel, the agent, sshd with the sessions it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, Field

from node_agent.errors import Refusal
from node_agent.fault import TAG_PREFIX, Facts
from node_agent.host import Reader
from node_agent.rules import Scope
from node_agent.scopes import ScopeFields, cgroup_root, find_scope

_KTHREADD = 2
_GONE = ("Z", "X")


@dataclass(frozen=True)
class Member:
    """A process as /proc/PID/stat shows it (proc_pid_stat(5)). `started` in clock ticks since boot."""

    pid: int
    comm: str
    state: str
    parent: int
    started: int

    @property
    def alive(self) -> bool:
        """It has not ended, waited for or not."""
        return self.state not in _GONE


class GroupFields(BaseModel):
    """The parameters that say which control group. Exactly one is given."""

    unit: str = Field(default="", description="systemd unit, through its restarts; .service may be left out")
    cgroup: str = Field(default="", description="control group, by its path below the cgroup root")
    container: str = Field(default="", description="container by id or name: containerd, CRI-O, Docker, Podman")


def find_group(reader: Reader, facts: Facts, wanted: GroupFields) -> Scope:
    """The scope that such parameters name, for what acts on control groups only. Raises :class:`Refusal`."""
    given = {name: getattr(wanted, name) for name in GroupFields.model_fields}
    if not any(given.values()):
        raise Refusal("scope: nobody is named", field="unit", allowed="exactly one of unit, cgroup, container")
    scope = find_scope(reader, facts, ScopeFields(**given))
    if not scope.cgroup:
        raise Refusal(
            f"container: {scope.name} has no control group of version 2",
            field="container",
            allowed="a unit or a container with one",
        )
    return scope


def folders_of(facts: Facts, scope: Scope) -> tuple[str, ...]:
    """The control groups of a scope as paths; none of a process."""
    if not scope.cgroup:
        return ()
    root = cgroup_root(facts)
    return tuple(f"{root}{path}" for path in (scope.cgroup, *scope.also))


def look_at(reader: Reader, pid: int) -> Member:
    """A process now. Raises OSError where it is gone."""
    head, _, tail = reader.read_text(f"/proc/{pid}/stat").rpartition(")")
    words = tail.split()
    return Member(pid, head.partition("(")[2], words[0], int(words[1]), int(words[19]))


def find(reader: Reader, pid: int, started: int) -> Member | None:
    """That process, not a later one of its number; None where it has ended."""
    with suppress(OSError):
        found = look_at(reader, pid)
        return found if found.started == started and found.alive else None
    return None


def everybody(reader: Reader) -> dict[int, Member]:
    """All processes, by number."""
    found = {}
    for name in reader.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found[int(name)] = look_at(reader, int(name))
    return found


def tree_of(known: Mapping[int, Member], root: int) -> list[Member]:
    """A process and its descendants, by number; empty where it is not there."""
    chosen, fresh = {root} & known.keys(), {root} & known.keys()
    while fresh:
        fresh = {p.pid for p in known.values() if p.parent in fresh} - chosen
        chosen |= fresh
    return [known[pid] for pid in sorted(chosen)]


def in_folders(reader: Reader, folders: Iterable[str]) -> list[Member]:
    """The processes in these control groups and those below them, by number."""
    found: dict[int, Member] = {}
    for folder in folders:
        for path in {f"{folder}/cgroup.procs", *reader.glob(f"{folder}/**/cgroup.procs")}:
            with suppress(OSError):
                for word in reader.read_text(path).split():
                    with suppress(OSError):
                        found[int(word)] = look_at(reader, int(word))
    return [found[pid] for pid in sorted(found)]


def members_of(reader: Reader, facts: Facts, scope: Scope) -> tuple[Member, ...]:
    """The living processes of a scope, by number; none where it does not run."""
    if scope.cgroup:
        found = in_folders(reader, folders_of(facts, scope))
    else:
        known = everybody(reader)
        here = scope.pid in known and known[scope.pid].started == scope.started
        found = (tree_of(known, scope.pid) if scope.kind == "tree" else [known[scope.pid]]) if here else []
    return tuple(one for one in found if one.alive)


def refuse_protected(reader: Reader, field: str, chosen: Sequence[Member]) -> None:
    """Raises :class:`Refusal` where one of the processes is needed for control.

    A session of sshd is in the control group of its user: so the session of the operator is none to act on.
    """
    agent = int(reader.read_text("/proc/self/stat").split()[0])
    for one in chosen:
        reasons = {
            "is pid 1": one.pid == 1,
            "is a kernel thread": _KTHREADD in (one.pid, one.parent),
            "is the agent": one.pid == agent,
            "is sshd": one.comm.startswith("sshd"),
        }
        for why, is_so in reasons.items():
            if is_so:
                text = f"{field}: process {one.pid} ({one.comm}) {why}"
                raise Refusal(text, field=field, allowed="another process, or a smaller scope")


def refuse_ours(field: str, scope: Scope) -> None:
    """Raises :class:`Refusal` where a control group is one that an injection has made."""
    for path in (scope.cgroup, *scope.also):
        if any(part.startswith(TAG_PREFIX) for part in path.split("/")):
            text = f"{field}: {path} belongs to an injection"
            raise Refusal(text, field=field, allowed="a control group of somebody else")


def field_of(wanted: BaseModel) -> str:
    """Which of the parameters names the scope."""
    return next((name for name in ScopeFields.model_fields if getattr(wanted, name, None)), "unit")
