"""disk_slow: a disk answers late, by its regions, with stalls where it is worst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.fault import Evidence, Facts, Missing, PlanNotes, Target
from node_agent.host import DmTarget, Reader
from node_agent.signs import Sign, rises
from node_agent.steps import Step
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_names import TableLine, lines_of
from node_agent.steps.dm_tables import merge
from node_agent.steps.io_cap import IoCap

from .counting import is_armed, passed
from .disk_place import PlacedFault, place_of_target
from .layers import READS, WRITES, base, device, layer, let_go, planted
from .places import dice

REGIONS = 512
"""Parts of the disk that have a delay of their own, where there is jitter or where some stall."""

CLASSES = 8
"""Different delays that jitter makes: each takes a device, and a thread of the kernel."""

MAX_MS = 60_000
MAX_MIB_S = 100_000
MIB = 1 << 20


class DiskSlow(PlacedFault):
    """Reads, writes and flushes take longer by so many milliseconds, each apart.

    `jitter_percent` spreads the delays evenly by so much to both sides; `stall_percent` of the disk answers only
    after `stall_ms`. Both go by region, by seed: a place that is slow stays slow, as on a disk that wears out.
    `read_mib_s` and `write_mib_s` cap the throughput of the whole disk, for each control group at the top of the
    system (system.slice, user.slice, …); with `read_ms` and `write_ms` 0 there is a cap and no delay.
    """

    name: ClassVar[str] = "disk_slow"
    summary: ClassVar[str] = "a data disk, or a part of it, answers late"
    operator_sees: ClassVar[str] = (
        "await of the disk rises, iowait and the io pressure with it, processes in state D; no error and no log "
        "line, but 'blocked for more than … seconds' where it takes that long"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"read_ms": 0, "write_ms": 25, "flush_ms": 25},
        {"read_ms": 20, "jitter_percent": 80, "stall_percent": 2, "stall_ms": 4000, "seed": 7},
        {"read_ms": 0, "write_ms": 0, "write_mib_s": 2},
        {"file": "/srv/data/**", "read_ms": 200},
    )

    read_ms: int = Field(default=100, ge=0, le=MAX_MS, description="added to each read, in milliseconds")
    write_ms: int = Field(default=100, ge=0, le=MAX_MS, description="added to each write, in milliseconds")
    flush_ms: int = Field(default=0, ge=0, le=MAX_MS, description="added to each flush, in milliseconds")
    jitter_percent: int = Field(
        default=0, ge=0, le=100, description="how far delays vary by region, to both sides"
    )
    stall_percent: float = Field(default=0, ge=0, le=100, description="share of the regions that stall")
    stall_ms: int = Field(default=5000, ge=1, le=MAX_MS, description="added to reads and writes of those regions")
    read_mib_s: int = Field(default=0, ge=0, le=MAX_MIB_S, description="cap on reads of the whole disk; 0: none")
    write_mib_s: int = Field(default=0, ge=0, le=MAX_MIB_S, description="cap on writes of the whole disk; 0: none")

    @model_validator(mode="after")
    def _slow_at_all(self) -> DiskSlow:
        late = self.read_ms or self.write_ms or self.flush_ms or self.stall_percent
        capped = self.read_mib_s or self.write_mib_s
        if not (late or capped):
            raise ValueError("nothing would be slow; give a delay, stall_percent, read_mib_s or write_mib_s")
        if capped and (self.file or self.range):
            raise ValueError("read_mib_s and write_mib_s are for a whole disk; leave out file and range")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("dm.delay", *(("cgroup.io",) if self.read_mib_s or self.write_mib_s else ()))

    def cap(self, number: str) -> IoCap | None:
        """The step that caps throughput, where that is wanted."""
        if not (self.read_mib_s or self.write_mib_s):
            return None
        return IoCap(number=number, read_bps=self.read_mib_s * MIB, write_bps=self.write_mib_s * MIB)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        place = place_of_target(target)
        media = (
            device(place, tag, "gate", "linear", f"{base(place, tag)} 0"),
            *(
                device(place, tag, f"delay-{number}", "delay", _three_ways(f"dm:{layer(tag, 'gate')} 0", *delays))
                for number, delays in enumerate(self.delays())
            ),
            DmDevice(name=layer(tag, "slow"), table=lines_of(self._regions(place.size, tag))),
        )
        steps = planted(place, tag, media, lambda start, length: _line(tag, start, length), drop_pages=True)
        gate = f"dm:{layer(tag, 'gate')}"
        free = (let_go(place, tag, f"delay-{n}", gate) for n in range(len(self.delays())))
        cap = self.cap(place.number)
        return (*steps, *free, *((cap,) if cap else ()))

    def delays(self) -> tuple[tuple[int, int, int], ...]:
        """Milliseconds of reads, writes and flushes, by class of region. The last one stalls, where any does."""
        spread = (1,) if not self.jitter_percent else tuple(_evenly(self.jitter_percent / 100, CLASSES))
        usual = [(round(self.read_ms * f), round(self.write_ms * f), self.flush_ms) for f in spread]
        return (*usual, *(((self.stall_ms, self.stall_ms, self.flush_ms),) if self.stall_percent else ()))

    def _regions(self, size: int, tag: str) -> tuple[DmTarget, ...]:
        """The disk in regions of whole 4 KiB blocks, each of a class chosen by seed."""
        usual = len(self.delays()) - bool(self.stall_percent)
        if usual == 1 and not self.stall_percent:
            return (DmTarget(0, size, "linear", f"dm:{layer(tag, 'delay-0')} 0"),)
        chance = dice(self.seed)
        span = max(8, -(-size // REGIONS) // 8 * 8)
        lines = []
        for start in range(0, size, span):
            stalls = chance.random() * 100 < self.stall_percent
            number = usual if stalls else chance.randrange(usual)
            over = f"dm:{layer(tag, f'delay-{number}')}"
            lines.append(DmTarget(start, min(span, size - start), "linear", f"{over} {start}"))
        return merge(lines)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        place = place_of_target(target)
        known = ["reads of what is in the page cache"]
        if place.file:
            known.append("blocks that the file gets from now on")
        capped = self.cap(place.number) is not None
        if capped:
            known.append("the cap: threads of the kernel, such as the journal's, and control groups made later")
        return PlanNotes(
            backend="dm-delay, io.max of control groups" if capped else "dm-delay",
            covers=tuple(dict.fromkeys((*READS, *WRITES, "fsync"))),
            not_covered=tuple(known),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        number = place_of_target(target).number if target else "*"
        path = f"/sys/dev/block/{number}/stat"
        wanted = ((self.read_ms, "reads", 3), (self.write_ms, "writes", 7))
        return tuple(
            rises(f"time that {what} of the disk took (ms)", path, nth, f"once there are {what}")
            for ms, what, nth in wanted
            if ms
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        place, late = place_of_target(target), passed(reader, layer(tag, "gate"))
        armed = is_armed(reader, place, lambda start, length: _line(tag, start, length))
        counters = {"late_reads": late.reads, "late_writes": late.writes}
        cap = self.cap(place.number)
        if cap:
            counters["capped_control_groups"] = cap.standing(reader)
            armed = armed and counters["capped_control_groups"] > 0
        return Evidence(armed=armed, hits=late.reads + late.writes, counters=counters)


def _evenly(spread: float, count: int) -> list[float]:
    """Factors around 1, evenly from 1 - spread to 1 + spread."""
    return [1 - spread + 2 * spread * number / (count - 1) for number in range(count)]


def _three_ways(to: str, read_ms: int, write_ms: int, flush_ms: int) -> str:
    """Arguments of dm-delay (Documentation/admin-guide/device-mapper/delay.rst)."""
    return f"{to} {read_ms} {to} {write_ms} {to} {flush_ms}"


def _line(tag: str, start: int, length: int) -> TableLine:
    return TableLine(start=start, length=length, kind="linear", args=f"dm:{layer(tag, 'slow')} {start}")
