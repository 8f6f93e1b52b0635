"""What a change of the clock leaves for whoever takes it back: a file that lives as long as the change does.

The kernel keeps one clock and no name of who moved it. So each step writes to /run/groundfault/NAME how the clock
was before, and, before it moves the clock back, where that is to end: done twice, it ends at the same place. A
reboot forgets the file and the change alike.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from node_agent.host import Host, Reader
from node_agent.host.clock import UNSYNCHRONISED, Instant, Rate, Sync
from node_agent.steps.mark_file import DIRECTORY

NEAR_NS = 1_000_000
"""Reading two clocks is exact to some microseconds; nobody steps a clock by less than this."""

_AGES_US = 500
"""By how many microseconds a second the kernel lets the possible error grow (MAXFREQ in <linux/timex.h>)."""

_MOST_ERROR_US = 16_000_000


class Before(BaseModel):
    """The clock before it was changed: nanoseconds, and what adjtimex(2) reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    boot_id: str
    offset: int
    raw: int
    monotonic: int
    tick_us: int
    freq: int
    status: int
    max_error_us: int
    error_us: int

    @property
    def rate(self) -> Rate:
        """How fast it went."""
        return Rate(self.tick_us, self.freq)

    @property
    def sync(self) -> Sync:
        """What the kernel believed of it."""
        return Sync(self.status, self.max_error_us, self.error_us)

    def gained(self, now: Instant) -> int:
        """By how much the clock has run ahead since, in nanoseconds: not by steps, and not as it did before."""
        usual = (now.raw - self.raw) * (1 + self.rate.ppm / 1e6)
        return (now.monotonic - self.monotonic) - round(usual)


class ClockRecord(BaseModel):
    """The file. `goal`: the offset that the clock is being moved to, once that has been decided."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: Before
    goal: int | None = None


def look(reader: Reader) -> Before:
    """The clock as it is now."""
    now, rate, sync = reader.clock.now(), reader.clock.rate(), reader.clock.sync()
    return Before(
        boot_id=reader.boot_id(), offset=now.offset, raw=now.raw, monotonic=now.monotonic, tick_us=rate.tick_us,
        freq=rate.freq, status=sync.status, max_error_us=sync.max_error_us, error_us=sync.error_us,
    )  # fmt: skip


def path_of(name: str) -> str:
    """Where the record of that name is."""
    return f"{DIRECTORY}/{name}"


def read_record(reader: Reader, name: str) -> ClockRecord | None:
    """The record; None where there is none, or one that was not written to its end."""
    with suppress(OSError, ValidationError):
        return ClockRecord.model_validate_json(reader.read_text(path_of(name)))
    return None


def write_record(host: Host, name: str, record: ClockRecord) -> None:
    """Write it, or write it anew."""
    host.write_text(path_of(name), record.model_dump_json() + "\n")


def of_undo(reader: Reader, undo: dict[str, Any] | None) -> Before | None:
    """What the journal says of the clock before; None where it says nothing, or speaks of another boot."""
    before = Before.model_validate(undo) if undo else None
    return before if before is not None and before.boot_id == reader.boot_id() else None


def move_to(host: Host, goal: int, now: int) -> None:
    """Step the wall clock so that its offset is `goal`; it was seen to be `now`."""
    if abs(goal - now) > NEAR_NS:
        host.clock.shift(round((goal - now) / 1000))


def restore_sync(host: Host, before: Before) -> None:
    """Let the kernel trust its time again if it did: a step makes it doubt. The possible error has grown since."""
    now = host.clock.sync()
    if before.sync.synchronised and not now.synchronised:
        seconds = (host.clock.now().raw - before.raw) // 1_000_000_000
        error = min(before.max_error_us + seconds * _AGES_US, _MOST_ERROR_US)
        host.clock.set_sync(Sync(now.status & ~UNSYNCHRONISED, error, before.error_us))
