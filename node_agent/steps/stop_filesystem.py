"""Making a file system stop as one that met an error does: ext4 goes read-only, XFS or ext4 shuts down."""

from __future__ import annotations

from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.host.mounting import Mounted
from node_agent.host.room import Loses
from node_agent.steps.base import Resource, Step, Undo

READ_ONLY = "remount-ro"

LOGGED = "file system error"
"""What the kernel logs: no word of the lab, so that whoever reads the log meets the error and not who made it."""


class StopFilesystem(Step):
    """Stops the file system that disk `device` has at `mount`. What brings it back is the care that comes before.

    `error`: an ext4 that would go on at an error is told not to, and meets one. That option is put back; an
    ext4 that has stopped gets it back when the care mounts it again. `shutdown`: as an XFS ends, at any error of
    its log.
    Reverting thaws what an agent that died had frozen, and twice equals once. A disk that is gone is fine.
    """

    kind: Literal["stop_filesystem"] = "stop_filesystem"
    name: str
    """The tag of the injection."""
    device: str
    mount: str
    how: Literal["error", "shutdown"]
    loses: Loses

    def describe(self) -> str:
        first = "" if self.loses != "nothing" else ", with all that was written on its disk"
        if self.how == "shutdown":
            return f"shut down the file system at {self.mount}{first}"
        return f"let the ext4 at {self.mount} meet an error and turn read-only{first}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("mount", self.mount),)

    def capture(self, reader: Reader) -> Undo:
        mounted = self._mounted(reader)
        if mounted is None:
            raise ConflictError(f"{self.mount} is not mounted from {self.device} any more")
        ill = reader.filesystems.ailments(mounted)
        if ill:
            raise ConflictError(f"the file system is not well as it is: {'; '.join(ill.values())}")
        return {"reaction": reader.stops.reaction(mounted)} if self.how == "error" else {}

    def apply(self, host: Host) -> None:
        mounted = self._mounted(host)
        if mounted is None:
            raise ConflictError(f"{self.mount} is not mounted from {self.device} any more")
        if self.how == "shutdown":
            host.stops.shut_down(mounted, self.loses)
            return
        if host.stops.reaction(mounted) != READ_ONLY:
            host.stops.set_reaction(mounted, READ_ONLY)
        host.stops.raise_error(mounted, LOGGED, self.loses)

    def revert(self, host: Host, undo: Undo | None) -> None:
        mounted = self._mounted(host)
        if mounted is None or self.how == "shutdown":
            return
        ill = host.filesystems.ailments(mounted)
        if "no-answer" in ill:
            host.stops.thaw(mounted)
            ill = host.filesystems.ailments(mounted)
        before = self._before(host, mounted, undo)
        if "stopped" not in ill and host.stops.reaction(mounted) != before:
            host.stops.set_reaction(mounted, before)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        mounted = self._mounted(reader)
        if mounted is None:
            return ()
        ill = reader.filesystems.ailments(mounted)
        left = [text for kind, text in ill.items() if kind in ("stopped", "no-answer")]
        if self.how == "error":
            now = reader.stops.reaction(mounted)
            # After a reboot it is mounted as somebody wrote down, and what was set by hand before is forgotten.
            if now not in (self._before(reader, mounted, undo), reader.stops.usual_reaction(mounted)):
                left.append(f"{self.mount} has errors={now}")
        return tuple(left)

    def _before(self, reader: Reader, mounted: Mounted, undo: Undo | None) -> str:
        """Where the journal has lost it, what the superblock says."""
        if undo is None:
            return reader.stops.usual_reaction(mounted)
        return str(undo["reaction"])

    def _mounted(self, reader: Reader) -> Mounted | None:
        """None where another file system is mounted there, or the disk is gone."""
        info, mounted = reader.dm.info(self.device), reader.filesystems.mounted(self.mount)
        return mounted if info is not None and mounted is not None and mounted.device == info.number else None
