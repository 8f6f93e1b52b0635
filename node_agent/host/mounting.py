"""Mounted file systems, what ails them and bringing them back: what faults see of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Mounted:
    """A mounted file system, and what mounts it again: `options` are for `mount -o`. `device` is "major:minor"."""

    source: str
    target: str
    fstype: str
    options: str
    device: str


@dataclass(frozen=True)
class Repair:
    """What was done to bring a file system back, a line each, and which data are lost for good."""

    done: tuple[str, ...]
    lost: tuple[str, ...]


class FilesystemsReader(Protocol):
    """Looking at mounted file systems, and at what repairs have found."""

    def mounted(self, target: str) -> Mounted | None:
        """What is mounted at a place; None where nothing is."""

    def ailments(self, mounted: Mounted) -> Mapping[str, str]:
        """What is wrong with it, by kind, a line each; empty when it is well. Tries a write without a trace."""

    def lost(self, name: str) -> tuple[str, ...]:
        """Which data the repairs of that name found to be lost. Outlasts the agent and a reboot."""

    def begun(self, name: str) -> Mounted | None:
        """What a repair of that name has begun to bring back and has not yet; None where nothing is."""

    def identity(self, target: str) -> str:
        """The UUID of the file system mounted at a place, which answers even where its disk is dead."""

    def identity_on(self, path: str, offset: int) -> str:
        """The UUID of the file system that begins at `offset` bytes of a device; empty where none does."""


class Filesystems(FilesystemsReader, Protocol):
    """Bringing them back."""

    def repair(self, name: str, wanted: Mounted, *, flushed: bool = False) -> Repair:
        """Unmount, check, mount as `wanted`, with the services that use it stopped meanwhile. Twice equals once.

        `flushed`: when it stopped, all that was written was on its disk.
        Raises OSError or :class:`CommandError`; EBUSY says who uses it and cannot be stopped.
        """
