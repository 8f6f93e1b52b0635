"""disk_degraded: the drive answers slowly, or for a while not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from labctl.hardware.bench import DISK, Bench, drive_of, stats_of
from labctl.hardware.fault import HardwareFault, Place
from labctl.lab.qmp import Qmp
from node_agent.fault import Evidence, PlanNotes
from node_agent.schedule import Schedule, ScheduleValue
from node_agent.signs import Sign, in_log, rises

_ALL = ("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr")
_ENDINGS: Mapping[str, str] = {"both": "", "reads": "_rd", "writes": "_wr"}


class SlowDisk(Place):
    """The data disk."""

    def describe(self) -> str:
        return "the data disk"


class DiskDegraded(HardwareFault):
    """The drive serves at most so many requests or bytes a second, or `stall`: none.

    A request waits in the drive: the guest sees its latency, and no error. With `schedule` burst:ON/OFF the
    drive is slow for ON seconds and well for OFF, in turn. The first request after a stall begins is still
    answered.
    """

    name: ClassVar[str] = "disk_degraded"
    summary: ClassVar[str] = "the data disk itself answers slowly, or stalls"
    operator_sees: ClassVar[str] = (
        "await and %util of the disk rise in iostat while its throughput falls; processes in state D; with long "
        "stalls 'blocked for more than 120 seconds' in the kernel log; no I/O error"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"iops": 0, "kib_per_s": 256, "only": "writes"},
        {"stall": True, "schedule": "burst:3/10"},
    )
    place: ClassVar[type[Place]] = SlowDisk
    holds: ClassVar[tuple[str, ...]] = ("data disk's speed",)

    iops: int = Field(default=50, ge=0, le=1_000_000, description="requests a second; 0: any number")
    kib_per_s: int = Field(default=0, ge=0, le=2**30, description="KiB a second; 0: any number")
    only: Literal["both", "reads", "writes"] = Field(default="both", description="which requests are slow")
    stall: bool = Field(default=False, description="no request is answered at all, instead of few")
    schedule: Schedule = Field(default=ScheduleValue(), description="always, or burst:ON/OFF in seconds")

    @field_validator("kib_per_s")
    @classmethod
    def _slow_at_all(cls, value: int, info: ValidationInfo) -> int:
        if not value and not info.data.get("iops"):
            raise ValueError("neither iops nor kib_per_s limits anything")
        return value

    @field_validator("schedule")
    @classmethod
    def _schedule_of_time(cls, value: ScheduleValue) -> ScheduleValue:
        if value.kind not in ("always", "burst"):
            raise ValueError(f"{value.kind} counts requests, but a drive is slow by time; allowed: burst:ON/OFF")
        if value.kind == "burst" and (max(value.a, value.b) > 3600 or min(value.a, value.b) < 1):
            raise ValueError("a burst is burst:1/1 to burst:3600/3600")
        return value

    def locate(self, bench: Bench) -> SlowDisk:
        return SlowDisk()

    def actions(self, place: Place) -> tuple[str, ...]:
        what = "answer no request" if self.stall else f"serve at most {self._speed()}"
        if self.schedule.kind == "burst":
            what += f", for {self.schedule.a} s of every {self.schedule.a + self.schedule.b} s"
        return (f"have the drive {what} ({self.only})",)

    def _speed(self) -> str:
        limits = [f"{self.iops} requests"] if self.iops else []
        limits += [f"{self.kib_per_s} KiB"] if self.kib_per_s else []
        return " and ".join(limits) + " a second"

    def notes(self, place: Place) -> PlanNotes:
        return PlanNotes(
            backend="QEMU's I/O throttle",
            covers=("every request that reaches the disk, file systems' own as well",),
            not_covered=("reads from the guest's page cache, and writes into it until it is full",),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        used, long = "while the disk is used", "when a process waits for longer than 120 seconds"
        return (
            rises("milliseconds that requests took", "/sys/block/sd*/stat", nth=10, when=used),
            in_log("processes hang", r"blocked for more than \d+ seconds", long),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            before = stats_of(qmp, DISK)
            bench.memory.put("reads", str(before["rd_operations"]))
            bench.memory.put("writes", str(before["wr_operations"]))
            _throttle(qmp, self._limits())

    def _limits(self) -> Mapping[str, int]:
        ending = _ENDINGS[self.only]
        if self.stall:
            # Each byte counts as a request, and one request a second is allowed: 4 KiB take more than an hour.
            return {f"iops{ending}": 1, "iops_size": 1}
        limits = {f"iops{ending}": self.iops, f"bps{ending}": self.kib_per_s * 1024}
        return {name: value for name, value in limits.items() if value}

    def phase(self, bench: Bench, place: Place, age_s: float) -> None:
        if self.schedule.kind != "burst":
            return
        slow = age_s % (self.schedule.a + self.schedule.b) < self.schedule.a
        with bench.qmp() as qmp:
            if slow != _is_throttled(qmp):
                _throttle(qmp, self._limits() if slow else {})

    def heal(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            if _is_throttled(qmp):
                _throttle(qmp, {})

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        with bench.qmp() as qmp:
            return ("a throttle on the data disk",) if _is_throttled(qmp) else ()

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        with bench.qmp() as qmp:
            slow, now = _is_throttled(qmp), stats_of(qmp, DISK)
        reads = now["rd_operations"] - int(bench.memory.get("reads") or 0)
        writes = now["wr_operations"] - int(bench.memory.get("writes") or 0)
        hits = {"both": reads + writes, "reads": reads, "writes": writes}[self.only]
        resting = self.schedule.kind == "burst" and not slow
        notes = ("a pause of its schedule: the disk is well just now",) if resting else ()
        counters = {"reads": reads, "writes": writes, "slow_now": int(slow)}
        return Evidence(armed=slow or resting, hits=hits, counters=counters, notes=notes)


def _throttle(qmp: Qmp, limits: Mapping[str, int]) -> None:
    """Set these limits and no others. Waiting requests are looked at anew, so without limits they go at once."""
    qmp.send("block_set_io_throttle", {"id": DISK, **dict.fromkeys(_ALL, 0), **limits})


def _is_throttled(qmp: Qmp) -> bool:
    drive = drive_of(qmp, DISK)
    return any(drive.get(name) for name in _ALL)
