"""Names in the tables of a plan, and the numbers the kernel wants in their place.

A plan is made before its devices exist, so its tables say `dm:NAME` for a device-mapper device, `loop:NAME` for
the loop device over one, and `loop:/PATH` for the loop device over a file. At the time of the change these become
"major:minor".

A disk may have several levels: a fault of the whole disk pushes the table that was live down into a device of its
own, named `…-below`, and stands above it. Faults of ranges of a disk live in the table of its lowest level.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from node_agent.fault import TAG_PREFIX
from node_agent.host import DmTarget, Reader


class TableLine(BaseModel):
    """A line of a device-mapper table in a plan. `start` and `length` in 512-byte sectors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(ge=0)
    length: int = Field(gt=0)
    kind: str
    args: str = ""

    @property
    def end(self) -> int:
        """The first sector after it."""
        return self.start + self.length

    def as_target(self) -> DmTarget:
        """The same as the host's word for it, names and all."""
        return DmTarget(self.start, self.length, self.kind, self.args)

    @classmethod
    def of(cls, target: DmTarget) -> TableLine:
        """The host's word as data."""
        return cls(start=target.start, length=target.length, kind=target.kind, args=target.args)


def lines_of(table: Iterable[DmTarget]) -> tuple[TableLine, ...]:
    """A table as data."""
    return tuple(TableLine.of(target) for target in table)


BELOW = "-below"
"""How the name of a device ends that has the table a disk had before a fault was put on top of it."""


def levels(reader: Reader, disk: str) -> tuple[str, ...]:
    """The devices that make a disk up, from the one that is used down to the one whose table leads to the medium.

    Between two levels may stand any devices of the injection that put the upper one there. Raises OSError where
    there is no such disk.
    """
    made = made_devices(reader)
    found = [disk]
    while True:
        leads_to = {
            made[word] for line in reader.dm.table(found[-1]) for word in line.args.split() if word in made
        }
        below = [
            name
            for name in made.values()
            if name.endswith(BELOW)
            and name not in found
            and any(device.startswith(name.removesuffix(BELOW) + "-") for device in leads_to)
        ]
        if not below:
            return tuple(found)
        found.append(below[0])


def node_path(number: str) -> str:
    """The device node devtmpfs has for device-mapper device "major:minor"."""
    return f"/dev/dm-{number.partition(':')[2]}"


def numbers(reader: Reader, lines: Iterable[TableLine]) -> dict[str, str]:
    """What the names in these lines stand for now; a name whose device is not there is left out."""
    words = {word for line in lines for word in line.args.split() if word.startswith(("dm:", "loop:"))}
    found: dict[str, str] = {}
    for word in sorted(words):
        kind, _, name = word.partition(":")
        if name.startswith("/"):
            over = [loop.number for loop in reader.loop.list() if loop.backing == name]
            if over:
                found[word] = over[0]
            continue
        info = reader.dm.info(name)
        if info is None:
            continue
        if kind == "dm":
            found[word] = info.number
            continue
        over = [loop.number for loop in reader.loop.list() if loop.backing == node_path(info.number)]
        if over:
            found[word] = over[0]
    return found


def resolved(line: TableLine, known: Mapping[str, str]) -> DmTarget:
    """The line with numbers for names. Raises OSError (ENODEV) where a device is not there."""
    words = []
    for word in line.args.split():
        if word.startswith(("dm:", "loop:")) and word not in known:
            raise OSError(errno.ENODEV, "no such device", word)
        words.append(known.get(word, word))
    return DmTarget(line.start, line.length, line.kind, " ".join(words))


def made_devices(reader: Reader) -> dict[str, str]:
    """Names of the devices that injections made, by "major:minor"; a loop device has the name of what is below."""
    made = {info.number: info.name for info in reader.dm.list() if info.name.startswith(TAG_PREFIX)}
    by_node = {node_path(number): name for number, name in made.items()}
    for loop in reader.loop.list():
        file = loop.backing.rsplit("/", 1)[-1]
        if loop.backing in by_node:
            made[loop.number] = by_node[loop.backing]
        elif file.startswith(TAG_PREFIX):
            made[loop.number] = file
    return made


def holder_of(target: DmTarget, made: Mapping[str, str]) -> str:
    """The device of an injection that a line leads to; empty for a plain linear line to a disk.

    A kind other than linear that leads to none is answered with its name: whoever made it, it is not plain.
    """
    ours = next((made[word] for word in target.args.split() if word in made), "")
    return ours or ("" if target.kind == "linear" else target.kind)
