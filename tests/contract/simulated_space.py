"""Room on the simulated data disk, and its file system made to stop.

A file that fills, or a directory of files, is a text whose name bears a mark; it outlasts a reboot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node_agent.host.mounting import Mounted
from node_agent.host.room import Loses, Room

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

MIB = 1 << 20
_FILLS, _TAKES = "fills but ", "takes inodes but "


class SimulatedSpace:
    """A disk of 400 MiB, of which 20 are for root, with 1000 inodes."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def _left(self, what: str, otherwise: int) -> int:
        places = ("/srv/data/", "/dev/shm/")
        texts = [text for path, text in self._h.kernel.texts.items() if path.startswith(places)]
        return min([int(t.removeprefix(what)) for t in texts if t.startswith(what)] + [otherwise])

    def room(self, path: str) -> Room:
        self._h.alive()
        available = self._left(_FILLS, 300 * MIB)
        return Room(400 * MIB, available + 20 * MIB, available, 1000, self._left(_TAKES, 900))

    def refuses_data(self, folder: str, uid: int) -> bool:
        return uid != 0 and self.room(folder).available == 0

    def refuses_files(self, folder: str) -> bool:
        return self.room(folder).inodes_free == 0

    def start_file(self, path: str, uid: int, gid: int) -> None:
        self._make(path, "")

    def fill(self, path: str, uid: int, gid: int, leave: int) -> None:
        self._make(path, "")
        self._h.change()
        self._h.kernel.texts[path] = f"{_FILLS}{leave}"

    def take_inodes(self, path: str, uid: int, gid: int, leave: int) -> None:
        self._make(path, "")
        self._h.change()
        self._h.kernel.texts[path] = f"{_TAKES}{leave}"

    def _make(self, path: str, text: str) -> None:
        self._h.change()
        if path in self._h.kernel.texts:
            raise FileExistsError(path)
        self._h.kernel.texts[path] = text

    def clear(self, path: str) -> None:
        self._h.change()
        self._h.kernel.texts.pop(path, None)


class SimulatedStops:
    """`kernel.reactions` has what was set by hand; a reboot forgets it."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def reaction(self, mounted: Mounted) -> str:
        self._h.alive()
        return self._h.kernel.reactions.get(mounted.target, "continue")

    def usual_reaction(self, mounted: Mounted) -> str:
        return "continue"

    def set_reaction(self, mounted: Mounted, reaction: str) -> None:
        self._h.change()
        self._h.kernel.reactions[mounted.target] = reaction
        if reaction == "continue":
            del self._h.kernel.reactions[mounted.target]

    def raise_error(self, mounted: Mounted, text: str, loses: Loses) -> None:
        """Frozen, stopped, thawed: three changes."""
        ill = self._h.kernel.ailments
        self._h.change()
        ill[mounted.target] = {"no-answer": f"{mounted.target} does not answer"}
        self._h.change()
        ill[mounted.target] |= {"errors": "ext4 has counted 1 errors"}
        if self.reaction(mounted) == "remount-ro":
            ill[mounted.target] |= {"stopped": "Read-only file system"}
        self.thaw(mounted)

    def shut_down(self, mounted: Mounted, loses: Loses) -> None:
        self._h.change()
        self._h.kernel.ailments[mounted.target] = {"stopped": "Input/output error"}

    def thaw(self, mounted: Mounted) -> None:
        self._h.change()
        ill = self._h.kernel.ailments.get(mounted.target, {})
        ill.pop("no-answer", None)
        if not ill:
            self._h.kernel.ailments.pop(mounted.target, None)
