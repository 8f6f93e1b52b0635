"""A cap on what all control groups together may read and write on one disk."""

from __future__ import annotations

import errno
import os
from typing import Literal

from pydantic import Field, model_validator

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

ROOT = "/sys/fs/cgroup"
_SWITCH = f"{ROOT}/cgroup.subtree_control"
_NONE = "max"


class IoCap(Step):
    """Sets `io.max` of disk `number` in every control group at the top; reverting restores what it said.

    Bytes a second, 0 for no cap. A limit that is lower already stays, and limits of other disks are not touched.
    The controller io is switched on for the length of the injection where it was off, and off again unless
    somebody else has come to use it. The whole system has one switch, so one injection at a time holds it.

    A cap is a control group's own: two that are busy get twice as much together. What belongs to none, the
    threads of the kernel, has no cap. A control group that is made at the top later has none.

    Source: Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files". A value is restored only where it is
    the one that was set here, so reverting twice equals once. A disk that is gone took its limits along.
    """

    kind: Literal["io_cap"] = "io_cap"
    number: str = Field(pattern=r"^\d+:\d+$")
    read_bps: int = Field(default=0, ge=0)
    write_bps: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _caps_something(self) -> IoCap:
        if not self.wanted:
            raise ValueError("no cap")
        return self

    @property
    def wanted(self) -> dict[str, str]:
        """The keys of a line of io.max that this step sets."""
        caps = {"rbps": self.read_bps, "wbps": self.write_bps}
        return {key: str(value) for key, value in caps.items() if value}

    def describe(self) -> str:
        caps = ", ".join(f"{key} {value}" for key, value in self.wanted.items())
        return f"cap device {self.number} at {caps} in the io.max of every control group at the top"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", _SWITCH),)

    def capture(self, reader: Reader) -> Undo:
        if not has_io(reader):
            raise ConflictError("the system has no control groups of version 2 with the controller io")
        limits = {path: limits_of(reader, path, self.number) for path in _tops(reader)}
        return {"io": _switched_on(reader), "limits": limits}

    def apply(self, host: Host) -> None:
        if not _switched_on(host):
            host.write_text(_SWITCH, "+io\n")
        tops = _tops(host)
        if not tops:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), f"{ROOT}/*/io.max")
        for path in tops:
            there = limits_of(host, path, self.number)
            lower = {key: cap for key, cap in self.wanted.items() if _below(cap, there.get(key, _NONE))}
            _set(host, path, self.number, lower)

    def revert(self, host: Host, undo: Undo | None) -> None:
        for path, keys in self._ours(host, undo).items():
            before = undo["limits"].get(path, {}) if undo else {}
            _set(host, path, self.number, {key: before.get(key, _NONE) for key in keys})
        if self._left_on(host, undo):
            host.write_text(_SWITCH, "-io\n")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        caps = tuple(f"{path} has {keys} of {self.number}" for path, keys in self._ours(reader, undo).items())
        return (*caps, *((f"the controller io is on in {_SWITCH}",) if self._left_on(reader, undo) else ()))

    def standing(self, reader: Reader) -> int:
        """How many control groups have the cap now."""
        return sum(
            all(_holds(limits_of(reader, path, self.number), key, cap) for key, cap in self.wanted.items())
            for path in _tops(reader)
        )

    def _ours(self, reader: Reader, undo: Undo | None) -> dict[str, list[str]]:
        """Which keys of which files are as this step has set them, and were not before."""
        found: dict[str, list[str]] = {}
        for path in _tops(reader):
            now = limits_of(reader, path, self.number)
            before = undo["limits"].get(path, {}) if undo else {}
            keys = [k for k, cap in self.wanted.items() if now.get(k) == cap and before.get(k) != cap]
            if keys:
                found[path] = keys
        return found

    def _left_on(self, reader: Reader, undo: Undo | None) -> bool:
        """Whether the controller is on only because of this step.

        It cannot be switched off where a control group further down has it on, and must not be where there are
        other limits, because they would be lost.
        """
        if undo is None or undo["io"] or not _switched_on(reader):
            return False
        others = any(
            line.split()[0] != self.number
            for path in _tops(reader)
            for line in reader.read_text(path).splitlines()
        )
        further = any("io" in reader.read_text(p).split() for p in reader.glob(f"{ROOT}/*/cgroup.subtree_control"))
        return not others and not further


def has_io(reader: Reader) -> bool:
    """Whether the system's control groups are those of version 2, with the controller io."""
    path = f"{ROOT}/cgroup.controllers"
    return reader.exists(path) and "io" in reader.read_text(path).split()


def limits_of(reader: Reader, path: str, number: str) -> dict[str, str]:
    """The limits that a file io.max has for a device; none where it is not limited."""
    for line in reader.read_text(path).splitlines():
        device, *words = line.split()
        if device == number:
            pairs = (word.partition("=") for word in words)
            return {key: value for key, _, value in pairs if value != _NONE}
    return {}


def _switched_on(reader: Reader) -> bool:
    return "io" in reader.read_text(_SWITCH).split()


def _tops(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.glob(f"{ROOT}/*/io.max"))


def _below(cap: str, there: str) -> bool:
    return there == _NONE or int(cap) < int(there)


def _holds(limits: dict[str, str], key: str, cap: str) -> bool:
    return not _below(cap, limits.get(key, _NONE))


def _set(host: Host, path: str, number: str, limits: dict[str, str]) -> None:
    if limits:
        words = " ".join(f"{key}={value}" for key, value in limits.items())
        host.write_text(path, f"{number} {words}\n")
