"""The clock made to run fast or slow, and what it gained taken out again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.host.clock import UNSYNCHRONISED, Rate, Sync
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.clock_record import (
    NEAR_NS,
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

_TYPED_NS = 1_000_000_000
"""How exactly somebody sets a clock by hand, besides a tenth of what it was wrong by."""


class ClockRate(Step):
    """Lets the clock run `ppm` faster than it did (slower: less than 0); reverting restores the rate.

    Then the wall clock is stepped back by what it has gained: the difference of the monotonic clock, which goes
    at the same rate and is never stepped, to the raw one, at the rate from before. Only the wall clock can be
    stepped: the monotonic and the boot clock keep what they gained until the machine boots.

    Who stepped the wall clock meanwhile against the drift, by no more than it had gained, has corrected it: that
    is left out of what is taken back. A rate that is not the one set here is somebody else's and stays.

    While it is in force the kernel is told that nobody vouches for its time (STA_UNSYNC), or it would copy the
    wrong time to the RTC. `clock_record` says why twice equals once. A reboot forgets the rate and what it made.
    """

    kind: Literal["clock_rate"] = "clock_rate"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,126}$")
    ppm: float

    def describe(self) -> str:
        return f"let the clock run {abs(self.ppm):g} ppm {'fast' if self.ppm > 0 else 'slow'}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("clock", "wall clock"), Resource("file", path_of(self.name)))

    def capture(self, reader: Reader) -> Undo:
        before = look(reader)
        self._wanted(before)
        return before.model_dump()

    def apply(self, host: Host) -> None:
        before = look(host)
        write_record(host, self.name, ClockRecord(before=before))
        host.clock.set_sync(Sync(before.status | UNSYNCHRONISED, before.max_error_us, before.error_us))
        host.clock.set_rate(self._wanted(before))

    def revert(self, host: Host, undo: Undo | None) -> None:
        record = read_record(host, self.name)
        lost = of_undo(host, undo)
        if record is None and lost is not None and self.stands(host, lost):
            record = ClockRecord(before=lost)
        if record is not None:
            if self.stands(host, record.before):
                host.clock.set_rate(record.before.rate)
            now = host.clock.now()
            if record.goal is None:
                goal = now.offset - self.still_wrong_by(record.before, now.offset, record.before.gained(now))
                record = record.model_copy(update={"goal": goal})
                write_record(host, self.name, record)
            assert record.goal is not None
            move_to(host, record.goal, now.offset)
            restore_sync(host, record.before)
        host.remove_file(path_of(self.name))

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        found = [f"{path_of(self.name)} is still there"] if reader.exists(path_of(self.name)) else []
        before = of_undo(reader, undo)
        if before is not None and self.stands(reader, before):
            found.append(f"the clock still runs {reader.clock.rate().ppm:+g} ppm, it ran {before.rate.ppm:+g}")
        return tuple(found)

    def stands(self, reader: Reader, before: Before) -> bool:
        """Whether the clock runs at the rate that this step sets."""
        return reader.clock.rate().like(before.rate.faster(self.ppm))

    def still_wrong_by(self, before: Before, offset: int, gained: int) -> int:
        """What is left of what the clock has gained, after what somebody may have done about it."""
        stepped = offset - before.offset
        if abs(stepped) <= NEAR_NS:
            return gained
        against = stepped * gained < 0 and abs(stepped) <= abs(gained) * 1.1 + _TYPED_NS
        return gained + stepped if against else gained

    def _wanted(self, before: Before) -> Rate:
        try:
            return before.rate.faster(self.ppm)
        except ValueError as error:
            raise ConflictError(f"the clock runs {before.rate.ppm:+g} ppm already: {error}") from None
