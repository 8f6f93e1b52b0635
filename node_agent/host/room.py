"""Room on file systems, and making them stop: what faults of a file system see of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from node_agent.host.mounting import Mounted

Loses = Literal["nothing", "data", "log"]
"""What a file system that is made to stop has not on its disk: nothing, file data, or also changes in its log."""


@dataclass(frozen=True)
class Room:
    """What a file system has and what is left, in bytes; `available` is what users who are not root can have."""

    size: int
    free: int
    available: int
    inodes: int
    inodes_free: int


class SpaceReader(Protocol):
    """Looking at the room on mounted file systems."""

    def room(self, path: str) -> Room: ...
    def refuses_data(self, folder: str, uid: int) -> bool:
        """Whether a write of one block by that user answers ENOSPC. Leaves nothing behind."""

    def refuses_files(self, folder: str) -> bool:
        """Whether making a file answers ENOSPC. Leaves nothing behind."""


class Space(SpaceReader, Protocol):
    """Taking it as a user who is not root, and giving it back."""

    def start_file(self, path: str, uid: int, gid: int) -> None:
        """An empty file of that user's."""

    def fill(self, path: str, uid: int, gid: int, leave: int) -> None:
        """A file of that user's which takes all the space he can have, but for about `leave` bytes."""

    def take_inodes(self, path: str, uid: int, gid: int, leave: int) -> None:
        """A directory of that user's with so many empty files that about `leave` inodes are left."""

    def clear(self, path: str) -> None:
        """Remove what one of the others made; gone already is fine."""


class StopsReader(Protocol):
    """What an ext4 does when it meets an error: "continue", "remount-ro" or "panic"."""

    def reaction(self, mounted: Mounted) -> str: ...
    def usual_reaction(self, mounted: Mounted) -> str:
        """The same where no mount option says otherwise."""


class Stops(StopsReader, Protocol):
    """Making file systems stop as after an error."""

    def set_reaction(self, mounted: Mounted, reaction: str) -> None: ...
    def raise_error(self, mounted: Mounted, text: str, loses: Loses) -> None:
        """Let an ext4 meet an error, logged with `text`. Bounded."""

    def shut_down(self, mounted: Mounted, loses: Loses) -> None:
        """Shut down an ext4 or XFS. Bounded."""

    def thaw(self, mounted: Mounted) -> None:
        """End a freeze; one that is not frozen is fine."""
