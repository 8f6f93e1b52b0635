"""What the faults of the wall clock share: whose clock it is, who keeps it, and how far it may go."""

from __future__ import annotations

import datetime as dt

from node_agent.errors import ConflictError, Refusal
from node_agent.fault import Evidence, Target
from node_agent.host import Host, Reader
from node_agent.host.clock import Rate
from node_agent.probe import Lacking, capability
from node_agent.steps import Step
from node_agent.steps.clock_record import Before, read_record
from node_agent.steps.time_sync_off import TimeSyncOff

from .own_machine import refuse_container

BOUNDS_UNIX_S = (1577836800.0, 4102444800.0)
"""From 2020 to 2100: a clock outside breaks more than a fault of the clock does."""

_FIRST_TIME_NAMESPACE = "time:[4026531834]"
"""PROC_TIME_INIT_INO of include/linux/proc_ns.h."""

NOT_COVERED = (
    "the RTC: it is neither set nor read",
    "what was stamped meanwhile (files, logs, tokens, rows) keeps its time",
)
SHARED = "containers on this node have the same wall clock"


class KeptClock(Target):
    """The wall clock of this machine. `keepers`: units to be stopped, those that would start others first."""

    keepers: tuple[str, ...]
    tick_us: int
    freq: int

    @property
    def rate(self) -> Rate:
        """How fast it goes before the fault."""
        return Rate(self.tick_us, self.freq)

    def describe(self) -> str:
        return f"the wall clock, kept by {', '.join(self.keepers) or 'nobody'}"

    def holding_off(self) -> tuple[Step, ...]:
        """The step that stops whoever keeps the clock, where there is somebody."""
        return (TimeSyncOff(units=self.keepers),) if self.keepers else ()


def find_clock(reader: Reader) -> KeptClock:
    """The clock and its keepers. Raises :class:`ConflictError` where one of them could not be started again."""
    keepers = reader.clock.keepers()
    for one in keepers:
        if not one.unit:
            who = f"process {one.pid} ({one.name})"
            raise ConflictError(
                f"{who} keeps the clock and belongs to no service that can be started again",
                allowed="stop it, or have systemd run it as a service with a unit file",
            )
    services = tuple(dict.fromkeys(one.unit for one in keepers))
    rate = reader.clock.rate()
    return KeptClock(
        keepers=(*reader.clock.triggers(services), *services), tick_us=rate.tick_us, freq=rate.freq
    )  # fmt: skip


def refuse_far(reader: Reader, field: str, by_s: float) -> None:
    """Raise :class:`Refusal` where the clock would show a year in which software ends to work."""
    low, high = BOUNDS_UNIX_S
    now = reader.clock.now().wall / 1e9
    if not low <= now + by_s <= high:
        there = dt.datetime.fromtimestamp(now, dt.UTC) + dt.timedelta(seconds=by_s)
        allowed = f"{low - now:.0f} to {high - now:.0f}"
        raise Refusal(f"{field}: the clock would show {there:%Y-%m-%d}", field=field, allowed=allowed)


def clock_evidence(reader: Reader, armed: bool, counters: dict[str, int], note: str) -> Evidence:
    """What both show of a change that was made. One hit: nobody counts who looks at a clock."""
    running = (f"{one.name} (process {one.pid})" for one in reader.clock.keepers())
    notes = (*((note,) if note else ()), *(f"{who} runs and may correct the clock" for who in running))
    return Evidence(armed=armed, hits=1, counters=counters, notes=notes)


def before_of(reader: Reader, tag: str) -> Before | None:
    """How the clock was before the fault; None where there is no fault of that mark."""
    record = read_record(reader, tag)
    return record.before if record else None


@capability("clock.adjust", remedy="CAP_SYS_TIME, in the first user namespace")
def probe(host: Host) -> None:
    """The clock is this machine's alone, and takes the rate that it has: no change, but it needs the right to."""
    refuse_container(host, "the clock")
    namespace = host.realpath("/proc/self/ns/time").rpartition("/")[2]
    if namespace.startswith("time:") and namespace != _FIRST_TIME_NAMESPACE:
        raise Lacking("the agent is in a time namespace: its boot clock is not the machine's", "run it outside")
    host.clock.set_rate(host.clock.rate())
