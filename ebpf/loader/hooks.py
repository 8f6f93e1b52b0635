"""Programs and where they are attached: loaded when first wanted, attached only while a rule needs them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ebpf.loader.libbpf import BpfError, Link, Map, Object, Program
from node_agent.rules import Hook

CALL_PREFIX = "__x64_"
"""How x86-64 kernels call the function of a system call, as in __x64_sys_close."""

EVERYWHERE = "/"

KEPT_IDLE = 32
"""Programs that stay loaded while no rule wants them: loading again costs time, each costs eleven descriptors."""

_OF_THE_MOMENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""What refuses a program today and not tomorrow."""


@dataclass
class _Loaded:
    object: Object
    program: Program
    wanted: list[str] = field(default_factory=list)  # attach points, one for each rule that wants it
    links: dict[str, Link] = field(default_factory=dict)
    cgroups: dict[str, int] = field(default_factory=dict)  # the id of the cgroup each link was made for


class Hooks:
    """The programs of one object file. `shared` are the maps that all of them use.

    `cgroup_root` is where the cgroup2 hierarchy is mounted. Not thread-safe: the engine holds a lock.
    """

    def __init__(self, content: bytes, shared: Callable[[], Iterable[Map]], cgroup_root: Path) -> None:
        self._content, self._shared, self._cgroup_root = content, shared, cgroup_root
        self._loaded: dict[Hook, _Loaded] = {}
        self._refused: dict[Hook, BpfError] = {}

    def load(self, hook: Hook) -> None:
        """Load its program where that has not been done. Raises :class:`BpfError`, the same each time."""
        if hook in self._refused:
            raise self._refused[hook]
        if hook in self._loaded:
            self._loaded[hook] = self._loaded.pop(hook)  # the latest used is last
            return
        loaded = Object(self._content, str(hook))
        program = loaded.programs[_program_name(hook)]
        try:
            program.choose(hook.name if hook.flavour == "override_fmod_ret" else "")
            if hook.operation:
                loaded.set_constants(struct.pack("=QQ", hook.operation, hook.has_descriptor))
            for one in self._shared():
                loaded.share(one)
            loaded.load()
        except BpfError as error:
            loaded.close()
            if error.errno not in _OF_THE_MOMENT:
                self._refused[hook] = error
            raise
        self._loaded[hook] = _Loaded(loaded, program)
        self._unload_idle()

    def want(self, hook: Hook, at: str) -> None:
        """A rule needs this hook for callers below cgroup `at`. Raises OSError; nothing then changed."""
        self.load(hook)
        one = self._loaded[hook]
        one.wanted.append(at)
        try:
            self._settle(hook, one)
        except OSError:
            one.wanted.remove(at)
            self._settle(hook, one)
            raise

    def release(self, hook: Hook, at: str) -> None:
        """That rule is gone. With the last one the program is detached."""
        one = self._loaded.get(hook)
        if one and at in one.wanted:
            one.wanted.remove(at)
            self._settle(hook, one)
            self._unload_idle()

    def serves(self, hook: Hook, at: str) -> bool:
        """Whether a live link covers callers below cgroup `at`."""
        one = self._loaded.get(hook)
        return one is not None and any(covers(p, at) and self._id(p) == one.cgroups[p] for p in one.links)

    def link_ids(self) -> set[int]:
        """Ids of the links that are attached just now."""
        return {link.id for one in self._loaded.values() for link in one.links.values()}

    def _unload_idle(self) -> None:
        """Of the programs that no rule wants, unload those that were used longest ago."""
        idle = [hook for hook, one in self._loaded.items() if not one.wanted]
        for hook in idle[:-KEPT_IDLE]:
            self._loaded.pop(hook).object.close()

    def _settle(self, hook: Hook, one: _Loaded) -> None:
        """Attach and detach until exactly the outermost wanted places have a link.

        A program attached at a cgroup and again at one below it would judge each call below twice.
        """
        places = {self._place(hook, at) for at in one.wanted}
        outermost = {p for p in places if not any(q != p and covers(q, p) for q in places)}
        for at in sorted(outermost - set(one.links)):
            one.cgroups[at] = self._id(at)
            one.links[at] = self._attach(hook, one.program, at)
        for at in sorted(set(one.links) - outermost):
            one.links.pop(at).destroy()

    def _id(self, at: str) -> int:
        """The id of a cgroup; 0 where there is none. One that is made again under the same name has another."""
        try:
            return (self._cgroup_root / at.strip("/")).stat().st_ino
        except FileNotFoundError:
            return 0

    def _place(self, hook: Hook, at: str) -> str:
        if hook.flavour != "lsm_cgroup":
            return EVERYWHERE
        while not (self._cgroup_root / at.strip("/")).is_dir():
            at = at.rpartition("/")[0] or EVERYWHERE  # what is to come will be made below the nearest that exists
        return at

    def _attach(self, hook: Hook, program: Program, at: str) -> Link:
        if hook.flavour == "lsm_cgroup":
            return program.attach_cgroup(str(self._cgroup_root / at.strip("/")))
        if hook.flavour == "override_kprobe":
            return program.attach_kprobe(hook.name)
        return program.attach()

    def close(self) -> None:
        """Detach and unload everything."""
        for one in self._loaded.values():
            for link in one.links.values():
                link.destroy()
            one.object.close()
        self._loaded.clear()


def covers(outer: str, inner: str) -> bool:
    """Whether cgroup `inner` is `outer` or below it."""
    return outer in (EVERYWHERE, inner) or inner.startswith(outer.rstrip("/") + "/")


def _program_name(hook: Hook) -> str:
    if hook.flavour == "override_fmod_ret":
        return "override__fmod_ret"
    if hook.flavour == "override_kprobe":
        return "override__kprobe"
    return f"{hook.flavour}__{hook.name}"
