"""A new table for a whole disk, that leads to its old one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import DmTarget, Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.dm_names import TableLine, made_devices, numbers, resolved
from node_agent.steps.dm_tables import length_of


class DmOnTop(Step):
    """Swaps the table of `disk` for `lines`, which lead by way of this injection's devices to `below`.

    Reverting gives the device that has the lines the table that `below` has by then. That device is the disk, or,
    where another fault was put on top later, the one that fault stands on: they end in any order. `farewell` are
    messages for the target at sector 0, sent before its table goes, such as to write a cache back. Where that
    fails, because the disk below takes no writes, the table stays with all that is in the cache, and it is tried
    again.
    """

    kind: Literal["dm_on_top"] = "dm_on_top"
    disk: str
    below: str
    lines: tuple[TableLine, ...]
    farewell: tuple[str, ...] = ()

    def describe(self) -> str:
        kinds = ", ".join(dict.fromkeys(line.kind for line in self.lines))
        return f"swap the table of {self.disk} for {kinds} above {self.below}"

    def resources(self) -> tuple[Resource, ...]:
        # The sectors of the disk stay free for others: faults of ranges go below, faults of the disk above.
        return (Resource("dm", f"{self.disk} above {self.below}"),)

    def capture(self, reader: Reader) -> Undo:
        table = reader.dm.table(self.disk)
        if length_of(table) != self.lines[-1].end:
            raise ConflictError(f"{self.disk} has {length_of(table)} sectors, not {self.lines[-1].end} as planned")
        return {}

    def apply(self, host: Host) -> None:
        known = numbers(host, self.lines)
        host.dm.swap(self.disk, [resolved(line, known) for line in self.lines])

    def revert(self, host: Host, undo: Undo | None) -> None:
        for level in self._led(host):
            back = host.dm.table(self.below)
            self._say_farewell(host, level)
            host.dm.swap(level, back)

    def _say_farewell(self, host: Host, level: str) -> None:
        """Raises OSError where the target still cannot do what it is told.

        After one failed write dm-writecache refuses every access (drivers/md/dm-writecache.c, writecache_error),
        so that the file system would stop. A swap for the same table makes a new one, which reads from the cache
        what it has to write; it may have given up long before this, hence a second try.
        """
        for last in (False, True):
            try:
                self._send(host, level)
            except OSError:
                host.dm.swap(level, host.dm.table(level))
                if last:
                    raise
            else:
                return

    def _send(self, host: Host, level: str) -> None:
        for text in self.farewell:
            host.dm.message(level, 0, text)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"the table of {level} still leads to {self.below}" for level in self._led(reader))

    def _led(self, reader: Reader) -> Iterator[str]:
        """The device whose table has the lines: the disk, or the level below a fault that came later.

        Devices of this injection lead to each other, and are not meant.
        """
        own = self.below.removesuffix("below")  # the mark of the injection and a hyphen
        made = made_devices(reader)
        mine = {number for number, name in made.items() if name.startswith(own)}
        for info in reader.dm.list():
            if not info.name.startswith(own) and _leads(reader.dm.table(info.name), mine):
                yield info.name


def _leads(table: tuple[DmTarget, ...], to: set[str]) -> bool:
    return any(word in to for line in table for word in line.args.split())
