"""The wall clock stepped by some seconds, and stepped back by as many."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.clock_record import (
    Before,
    ClockRecord,
    look,
    move_to,
    of_undo,
    path_of,
    read_record,
    restore_sync,
    write_record,
)

_EXACT_NS = 50_000_000


class ClockOffset(Step):
    """Adds `by_us` microseconds to the wall clock; reverting takes the same away from whatever it shows then.

    Time that went by meanwhile stays, because nothing is set to a time of day. Whoever stepped the clock meanwhile
    keeps what they did: the offset to the boot clock tells. If it is nearer to where it was before than to where
    this step put it, they have corrected the clock and nothing is ours to take back; otherwise our part goes.

    `clock_record` says why twice equals once. The kernel forgets the offset when it boots and asks the RTC, which
    is not touched here: a step leaves STA_UNSYNC set, and the kernel then writes no time there.
    """

    kind: Literal["clock_offset"] = "clock_offset"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,126}$")
    by_us: int

    def describe(self) -> str:
        return f"step the wall clock by {self.by_us / 1e6:+g} s"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("clock", "wall clock"), Resource("file", path_of(self.name)))

    def capture(self, reader: Reader) -> Undo:
        return look(reader).model_dump()

    def apply(self, host: Host) -> None:
        write_record(host, self.name, ClockRecord(before=look(host)))
        host.clock.shift(self.by_us)

    def revert(self, host: Host, undo: Undo | None) -> None:
        record = read_record(host, self.name)
        if record is None and self._exactly(host, undo):
            record = ClockRecord(before=Before.model_validate(undo))
        if record is not None:
            now = host.clock.now().offset
            if record.goal is None:
                ours = self.by_us * 1000 if self.stands(record.before, now) else 0
                record = record.model_copy(update={"goal": now - ours})
                write_record(host, self.name, record)
            assert record.goal is not None
            move_to(host, record.goal, now)
            restore_sync(host, record.before)
        host.remove_file(path_of(self.name))

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        found = [f"{path_of(self.name)} is still there"] if reader.exists(path_of(self.name)) else []
        if self._exactly(reader, undo):
            found.append(f"the wall clock is still {self.by_us / 1e6:+g} s from where it was")
        return tuple(found)

    def stands(self, before: Before, offset: int) -> bool:
        """Whether the offset is nearer to what this step made it than to what it was before."""
        moved = offset - before.offset
        return abs(moved - self.by_us * 1000) < abs(moved)

    def _exactly(self, reader: Reader, undo: Undo | None) -> bool:
        """Where the record is lost: whether the clock is just where this step puts it."""
        before = of_undo(reader, undo)
        if before is None:
            return False
        moved = reader.clock.now().offset - before.offset
        return abs(moved - self.by_us * 1000) < min(_EXACT_NS, abs(self.by_us * 1000) // 2)
