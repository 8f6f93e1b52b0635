"""Names in the tables of a plan, and the numbers the kernel wants in their place.

A plan is made before its devices exist, so its tables say `dm:NAME` for a device-mapper device and `loop:NAME` for
the loop device over one. At the time of the change these become "major:minor".
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


def node_path(number: str) -> str:
    """The device node devtmpfs has for device-mapper device "major:minor"."""
    return f"/dev/dm-{number.partition(':')[2]}"


def numbers(reader: Reader, lines: Iterable[TableLine]) -> dict[str, str]:
    """What the names in these lines stand for now; a name whose device is not there is left out."""
    words = {word for line in lines for word in line.args.split() if word.startswith(("dm:", "loop:"))}
    found: dict[str, str] = {}
    for word in sorted(words):
        kind, _, name = word.partition(":")
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
    return made | {loop.number: by_node[loop.backing] for loop in reader.loop.list() if loop.backing in by_node}


def holder_of(target: DmTarget, made: Mapping[str, str]) -> str:
    """The device of an injection that a line leads to; empty for a plain linear line to a disk.

    A kind other than linear is answered with its name: whoever made it, it is not plain.
    """
    if target.kind != "linear":
        return target.kind
    return made.get(target.args.split()[0], "")
