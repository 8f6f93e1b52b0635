"""Programs and where they are attached: loaded when first wanted, attached only while a rule needs them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ebpf.loader.libbpf import BpfError, Link, Map, Object, Program
from node_agent.rules import Hook

KEPT_IDLE = 32
"""Programs that stay loaded while no rule wants them: loading again costs time, each costs eleven descriptors."""

_OF_THE_MOMENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""What refuses a program today and not tomorrow."""


@dataclass
class _Loaded:
    object: Object
    program: Program
    wanted: int = 0  # rules that do
    link: Link | None = None


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
            of_sockets = hook.flavour == "cgroup"
            loaded.set_constants(struct.pack("=QQQ", hook.operation, hook.has_descriptor, of_sockets))
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

    def want(self, hook: Hook) -> None:
        """A rule needs this hook. Raises OSError; nothing then changed."""
        self.load(hook)
        one = self._loaded[hook]
        if one.link is None:
            one.link = self._attach(hook, one.program)
        one.wanted += 1

    def release(self, hook: Hook) -> None:
        """A rule that needed it is gone. With the last one the program is detached."""
        one = self._loaded.get(hook)
        if one is None or not one.wanted:
            return
        one.wanted -= 1
        if not one.wanted and one.link:
            link, one.link = one.link, None
            link.destroy()
            self._unload_idle()

    def serves(self, hook: Hook) -> bool:
        """Whether it is attached."""
        one = self._loaded.get(hook)
        return one is not None and one.link is not None

    def link_ids(self) -> set[int]:
        """Ids of the links that are attached just now."""
        return {one.link.id for one in self._loaded.values() if one.link}

    def _unload_idle(self) -> None:
        """Of the programs that no rule wants, unload those that were used longest ago."""
        idle = [hook for hook, one in self._loaded.items() if not one.wanted]
        for hook in idle[:-KEPT_IDLE]:
            self._loaded.pop(hook).object.close()

    def _attach(self, hook: Hook, program: Program) -> Link:
        if hook.flavour == "override_kprobe":
            return program.attach_kprobe(hook.name)
        return program.attach_cgroup(str(self._cgroup_root)) if hook.flavour == "cgroup" else program.attach()

    def close(self) -> None:
        """Detach and unload everything."""
        for one in self._loaded.values():
            if one.link:
                one.link.destroy()
            one.object.close()
        self._loaded.clear()


def _program_name(hook: Hook) -> str:
    if hook.flavour == "override_fmod_ret":
        return "override__fmod_ret"
    if hook.flavour == "override_kprobe":
        return "override__kprobe"
    return f"{hook.flavour}__{hook.name}"
