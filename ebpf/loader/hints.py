"""The bytes by which programs tell those whom no rule is about: struct hints of ebpf/include/rules.h."""

from __future__ import annotations

import mmap
from typing import Literal

from ebpf.loader.abi import HINTS

Members = Literal["cgroups", "processes"]
_AT = {"cgroups": 0, "processes": HINTS}


class Hints:
    """One byte for each remainder of an id. Programs set bytes, too: nobody reads one and writes it back.

    `fd` is the map's, which the kernel lets us map.
    """

    def __init__(self, fd: int) -> None:
        self._bytes = mmap.mmap(fd, 2 * HINTS)

    def expect(self, kind: Members, number: int) -> None:
        """From now on a cgroup or process of this id may be a member."""
        self._bytes[_AT[kind] + number % HINTS] = 1
        if kind == "processes":
            self._bytes[_AT[kind]] = 1  # there are any

    def forget(self, kind: Members) -> None:
        """None is a member any more."""
        self._bytes[_AT[kind] : _AT[kind] + HINTS] = bytes(HINTS)

    def close(self) -> None:
        self._bytes.close()
