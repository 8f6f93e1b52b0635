"""The rule table in the kernel's maps: slots, bindings, and who is a member of which scope."""

from __future__ import annotations

import ctypes as c
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ebpf.loader import abi
from ebpf.loader.hints import Hints, Members
from ebpf.loader.libbpf import Map
from node_agent.errors import ApplyError
from node_agent.rules import Rule, Scope

_Key = c.c_uint64 | abi.CgroupPath


@dataclass
class _Member:
    """A scope that rules use: its token, and how many do."""

    scope: Scope
    token: int
    users: int = 0


@dataclass
class _Line:
    rule: Rule
    slot: int
    token: int


@dataclass
class RuleTable:
    """The maps, and what stands in them. Not thread-safe: the engine holds a lock.

    `cgroup_root` is where the cgroup2 hierarchy is mounted, `agent` the process that is never hit.
    """

    maps: Mapping[str, Map]
    hints: Hints
    cgroup_root: Path
    agent: int
    _lines: dict[str, _Line] = field(default_factory=dict)
    _members: dict[str, _Member] = field(default_factory=dict)
    _free: deque[int] = field(default_factory=lambda: deque(range(abi.MAX_RULES)))
    _next_token: int = 1

    def tags(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def rule(self, tag: str) -> Rule | None:
        line = self._lines.get(tag)
        return line.rule if line else None

    def tag_at(self, slot: int) -> str | None:
        return next((tag for tag, line in self._lines.items() if line.slot == slot), None)

    def add(self, tag: str, rule: Rule, armed_ns: int) -> None:
        """Write a rule down, deadline 0: nothing bites yet. Raises :class:`ApplyError` where a table is full."""
        if not self._free:
            raise ApplyError(f"the rule table is full: {abi.MAX_RULES} rules")
        member = self._join(rule.scope)
        slot = self._free.popleft()
        self._lines[tag] = _Line(rule, slot, member.token)
        key = abi.u32(slot)
        self.maps["rules"].put(key, abi.encode(rule, armed_ns))
        self.maps["counters"].put(key, abi.Counters())
        for operation in rule.operations:
            self._bind(member.token, operation, slot)

    def hold(self, tag: str, deadline_ns: int) -> None:
        """Let a rule bite until then, on the clock that runs since boot. One map write: all its hooks at once."""
        line = self._lines[tag]
        key, entry = abi.u32(line.slot), abi.RuleEntry()
        self.maps["rules"].get(key, entry)
        entry.deadline_ns = deadline_ns
        self.maps["rules"].put(key, entry)

    def remove(self, tag: str) -> Rule | None:
        """Take a rule out; absent is fine."""
        line = self._lines.pop(tag, None)
        if line is None:
            return None
        for operation in line.rule.operations:
            self._unbind(line.token, operation, line.slot)
        self.maps["rules"].put(abi.u32(line.slot), abi.RuleEntry())
        self._free.append(line.slot)
        self._leave(line.rule.scope)
        return line.rule

    def counters(self, tag: str) -> dict[str, int]:
        """By the names of :data:`abi.COUNTERS`, and `last_hit_ms` since boot."""
        entry = abi.Counters()
        self.maps["counters"].get(abi.u32(self._lines[tag].slot), entry)
        values = [int(getattr(entry, name)) for name, *_ in abi.Counters._fields_]
        return {
            **dict(zip(abi.COUNTERS, values, strict=False)),
            "last_hit_ms": int(entry.last_hit_ns) // 1_000_000,
        }

    def members(self, tag: str) -> int:
        """How many cgroups and processes bear the rule's token."""
        line = self._lines[tag]
        return sum(1 for name, _ in self._bearing(line.rule.scope, line.token) if name != "awaited")

    def needs_tracking(self) -> bool:
        """Whether the kernel has to keep members up to date: any scope does, if only to forget what is gone."""
        return bool(self._members)

    # -- bindings --------------------------------------------------------------------------------------------

    def _bind(self, token: int, operation: int, slot: int) -> None:
        key, binding = abi.BindingKey(token=token, operation=operation), abi.Binding()
        self.maps["bindings"].get(key, binding)
        if binding.count >= abi.MAX_COMPOSED:
            raise ApplyError(f"{abi.MAX_COMPOSED} rules apply to this scope and operation already")
        binding.slot[binding.count] = slot
        binding.count += 1
        self.maps["bindings"].put(key, binding)

    def _unbind(self, token: int, operation: int, slot: int) -> None:
        key, binding = abi.BindingKey(token=token, operation=operation), abi.Binding()
        if not self.maps["bindings"].get(key, binding):
            return
        left = [s for s in binding.slot[: binding.count] if s != slot]
        if left:
            fresh = abi.Binding(count=len(left))
            fresh.slot[: len(left)] = left
            self.maps["bindings"].put(key, fresh)
        else:
            self.maps["bindings"].delete(key)

    # -- scopes ----------------------------------------------------------------------------------------------

    def _join(self, scope: Scope) -> _Member:
        key = scope.model_dump_json()
        member = self._members.get(key)
        if member is None:
            inherited = abi.INHERITED if scope.kind == "tree" else 0
            member = _Member(scope, self._next_token | inherited)
            self._next_token += 1
            self._members[key] = member
            self._configure()
            if scope.cgroup:
                self._enrol_cgroup(member)
            else:
                self._enrol_processes(member)
        member.users += 1
        return member

    def _leave(self, scope: Scope) -> None:
        key = scope.model_dump_json()
        member = self._members.get(key)
        if member is None:
            return
        member.users -= 1
        if member.users > 0:
            return
        del self._members[key]
        for name, one in list(self._bearing(scope, member.token)):
            self._change(name, one, member.token, _without)
        self._configure()
        kinds: tuple[Members, ...] = ("cgroups", "processes")
        for kind in kinds:
            if not any(bool(other.scope.cgroup) == (kind == "cgroups") for other in self._members.values()):
                self._forget(kind)

    def _forget(self, kind: Members) -> None:
        """No scope of the kind is left: nor is what was made or forked while the last one was left."""
        for key in list(self.maps[kind].keys(abi.u64)):
            self.maps[kind].delete(key)
        self.hints.forget(kind)

    def _configure(self) -> None:
        """Tell the programs where to look: whether any process is a member."""
        processes = sum(1 for member in self._members.values() if not member.scope.cgroup)
        self.maps["config"].put(abi.u32(0), abi.Config(agent=self.agent, processes=processes))

    def _enrol_cgroup(self, member: _Member) -> None:
        """The cgroups and all below them."""
        for path in (member.scope.cgroup, *member.scope.also):
            self._enrol_below(path, member)

    def _enrol_below(self, path: str, member: _Member) -> None:
        """Again until a look finds no new one."""
        # First for when it is made again, then as it is now: made in between, it has the token either way.
        self._change("awaited", _path_key(path), member.token, _with)
        known: set[int] = set()
        while new := [one for one in self._cgroup_ids(path) if one not in known]:
            for one in new:
                self._enrol("cgroups", one, member.token)
            known |= set(new)

    def _cgroup_ids(self, path: str) -> list[int]:
        """The ids of a cgroup and those below it now, itself first; none where it does not exist."""
        top = self.cgroup_root / path.strip("/")
        try:
            found = [top.stat().st_ino]
        except FileNotFoundError:
            return []
        for directory, below, _ in os.walk(top):
            for name in below:
                with suppress(FileNotFoundError):
                    found.append((Path(directory) / name).stat().st_ino)
        return found

    def _enrol(self, kind: Members, number: int, token: int) -> None:
        self.hints.expect(kind, number)
        self._change(kind, abi.u64(number), token, _with)

    def _enrol_processes(self, member: _Member) -> None:
        """The process, and for a tree its descendants: again until a look finds no new one."""
        known: set[int] = set()
        wanted = {member.scope.pid}
        while wanted - known:
            for pid in wanted - known:
                self._enrol("processes", pid, member.token)
            known |= wanted
            if member.scope.kind == "tree":
                wanted = _descendants(known)

    def _bearing(self, scope: Scope, token: int) -> Iterator[tuple[str, _Key]]:
        """Where the token of a scope stands: (map, key)."""
        if scope.cgroup:
            places: list[tuple[str, _Key]] = []
            for path in (scope.cgroup, *scope.also):
                places.append(("awaited", _path_key(path)))
                places += [("cgroups", abi.u64(one)) for one in self._cgroup_ids(path)]
        elif scope.kind == "process":
            places = [("processes", abi.u64(scope.pid))]
        else:
            places = [("processes", key) for key in self.maps["processes"].keys(abi.u64)]
        for name, key in places:
            tokens = abi.Tokens()
            if self.maps[name].get(key, tokens) and token in tokens.at:
                yield name, key

    def _change(self, name: str, key: _Key, token: int, change: Callable[[list[int], int], list[int]]) -> None:
        tokens = abi.Tokens()
        self.maps[name].get(key, tokens)
        changed = change([t for t in tokens.at if t], token)
        if len(changed) > abi.MAX_TOKENS:
            raise ApplyError(f"{abi.MAX_TOKENS} scopes hold this cgroup or process already")
        if not changed:
            self.maps[name].delete(key)
            return
        fresh = abi.Tokens()
        fresh.at[: len(changed)] = changed
        self.maps[name].put(key, fresh)


def _path_key(path: str) -> abi.CgroupPath:
    text = path.encode(errors="surrogateescape")
    if len(text) >= abi.PATH_LEN:
        raise ApplyError(f"the path of cgroup {path} is longer than {abi.PATH_LEN - 1} bytes")
    return abi.CgroupPath(text=text)


def _with(tokens: list[int], token: int) -> list[int]:
    return tokens if token in tokens else [*tokens, token]


def _without(tokens: list[int], token: int) -> list[int]:
    return [t for t in tokens if t != token]


def _descendants(roots: set[int]) -> set[int]:
    """`roots` and all whose chain of parents leads there, by /proc just now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="surrogateescape")
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
