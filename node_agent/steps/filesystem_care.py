"""Care for the file system on a disk that a fault is planted in: what it did to protect itself is taken back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar, Literal

from node_agent.host import Host, Reader
from node_agent.host.mounting import Mounted
from node_agent.steps.base import Step, Undo
from node_agent.steps.dm_names import holder_of, made_devices


class FilesystemCare(Step):
    """Changes nothing; after the injection a file system that is less well than before is brought back.

    `capture` keeps how it was mounted and what was wrong with it already: only what has become wrong since is
    repaired, and a file system that is as well as before is not touched. While another injection stands in the
    disk's table nothing is repaired, because it would be broken again: that injection, which has its own step of
    this kind, does it at its end. Healing twice equals once; what it finds to be lost is kept on the disk of the
    system under `name`, so it is told even after a crash. A disk that is not there any more needs no care.
    """

    kind: Literal["filesystem_care"] = "filesystem_care"
    volatile: ClassVar[bool] = False
    name: str
    """Under which name the repair is remembered: the tag of the injection."""
    device: str
    """The device-mapper name of the disk."""
    mount: str
    """Where its file system is mounted."""
    flushed: bool = False
    """Whether all that was written is on the disk when the injection stops the file system."""

    def describe(self) -> str:
        return (
            f"look after the file system at {self.mount}: repair it at the end if it stopped or has errors by then"
        )

    def capture(self, reader: Reader) -> Undo:
        mounted = reader.filesystems.mounted(self.mount)
        if mounted is None:
            return {}
        ill = {} if self._others(reader) else dict(reader.filesystems.ailments(mounted))
        return {"mounted": asdict(mounted), "ill": sorted(ill)}

    def apply(self, host: Host) -> None:
        pass

    def revert(self, host: Host, undo: Undo | None) -> None:
        pass

    def heal(self, host: Host, undo: Undo | None) -> tuple[str, ...]:
        wanted = self._wanted(host, undo) or host.filesystems.begun(self.name)
        if wanted and (self._worse(host, undo) or host.filesystems.begun(self.name)):
            host.filesystems.repair(self.name, wanted, flushed=self.flushed)
        return host.filesystems.lost(self.name)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        begun = reader.filesystems.begun(self.name)
        unfinished = (f"the repair of {begun.target} has not come to its end",) if begun else ()
        return (*self._worse(reader, undo), *unfinished)

    def _wanted(self, reader: Reader, undo: Undo | None) -> Mounted | None:
        """How it was mounted. Where the journal has lost that, how it is mounted now has to do."""
        if undo is None:
            return reader.filesystems.mounted(self.mount)
        found: dict[str, Any] = undo.get("mounted", {})
        return Mounted(**found) if found else None

    def _worse(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        """What is wrong now and was not before."""
        wanted = self._wanted(reader, undo)
        info = reader.dm.info(self.device)
        if wanted is None or info is None or self._others(reader):
            return ()
        now = reader.filesystems.mounted(self.mount)
        if now is None:
            return (f"{self.mount} is not mounted, it was",)
        if now.device != info.number:  # somebody mounted another one there, and that is theirs
            return ()
        before = undo.get("ill", ()) if undo else ()
        return tuple(line for kind, line in reader.filesystems.ailments(now).items() if kind not in before)

    def _others(self, reader: Reader) -> bool:
        """Whether an injection stands in the disk's table."""
        if reader.dm.info(self.device) is None:
            return False
        made = made_devices(reader)
        return any(holder_of(target, made) for target in reader.dm.table(self.device))
