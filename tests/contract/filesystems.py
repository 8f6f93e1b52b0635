"""Simulated file systems: whether they are well, and what a repair of one that is not does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from node_agent.facts import parse_mountinfo
from node_agent.host.mounting import Mounted, Repair

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

MOUNTINFO = "/proc/self/mountinfo"
UUID = "10f2e313-cea1-4a90-958f-f724fd680ed8"


class SimulatedFilesystems:
    """What is mounted is in the simulated mountinfo; `kernel.ailments` says what a write there would show."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def mounted(self, target: str) -> Mounted | None:
        self._h.alive()
        found = [m for m in parse_mountinfo(self._h.kernel.texts[MOUNTINFO]) if m.target == target]
        return (
            Mounted(found[-1].source, target, found[-1].fstype, found[-1].options, found[-1].device)
            if found
            else None
        )

    def ailments(self, mounted: Mounted) -> Mapping[str, str]:
        self._h.alive()
        return dict(self._h.kernel.ailments.get(mounted.target, {}))

    def lost(self, name: str) -> tuple[str, ...]:
        return tuple(self._h.kernel.lost.get(name, ()))

    def begun(self, name: str) -> Mounted | None:
        return self._h.kernel.begun.get(name)

    def identity(self, target: str) -> str:
        return UUID

    def identity_on(self, path: str, offset: int) -> str:
        return UUID if path == "/dev/sdb" else ""

    def repair(self, name: str, wanted: Mounted, *, flushed: bool = False) -> Repair:
        """Two changes: what is lost is on disk before the file system is well again and mounted."""
        self._h.change()
        self._h.kernel.begun[name] = wanted
        ill = self._h.kernel.ailments.get(wanted.target, {})
        if "stopped" in ill and not flushed:
            self._h.kernel.lost[name] = [f"{wanted.target}: what was not on the disk yet"]
        self._h.change()
        self._h.kernel.ailments.pop(wanted.target, None)
        self._h.kernel.reactions.pop(wanted.target, None)
        if self.mounted(wanted.target) is None:
            line = f"9 1 {wanted.device} / {wanted.target} {wanted.options} - {wanted.fstype} {wanted.source} rw\n"
            self._h.kernel.texts[MOUNTINFO] += line
        del self._h.kernel.begun[name]
        return Repair((f"checked {wanted.target}",), self.lost(name))
