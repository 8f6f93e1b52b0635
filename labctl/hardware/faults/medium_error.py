"""medium_error: sectors of the data disk that the drive itself cannot read, until they are rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from labctl.errors import LabctlError, LabError, UsageError
from labctl.hardware import overlay
from labctl.hardware.bench import DISK, DISK_NODE, Bench, Files, block_nodes, drive_of, failed_reads, switch_drive
from labctl.hardware.fault import HardwareFault, Place
from node_agent.fault import Evidence, PlanNotes
from node_agent.signs import Sign, in_log, rises

SECTOR = 512
MAX_SECTORS = 1024
_MAX_RANGES = 64
_RANGE = re.compile(r"(\d{1,15})(?:\+(\d{1,6}))?")
_ENODATA = 61
"""What makes a SCSI disk of QEMU answer with sense key MEDIUM ERROR."""

_MAPPER = "latent_sector_error"
"""The agent's fault whose plan says where the sectors of a file are on the disk."""


_DATA = "data"
"""What the lab's nodes call the data disk in device mapper."""


class Run(BaseModel):
    """Sectors one behind the other; `offset` is their byte in the file, -1 where no file was asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    count: int
    offset: int = -1


class BadPlace(Place):
    """Sectors of the data disk, below everything that the guest has on it."""

    runs: tuple[Run, ...]
    file: str = ""

    def describe(self) -> str:
        first, more = self.runs[0], len(self.runs) - 1
        where = f"sector {first.start}+{first.count}{f' and {more} more' if more else ''} of the data disk"
        return f"{self.file} at byte {first.offset}: {where}" if self.file else where

    @property
    def sectors(self) -> tuple[int, ...]:
        """Each of them."""
        return tuple(run.start + i for run in self.runs for i in range(run.count))


class MediumError(HardwareFault):
    """The drive answers reads of these sectors with a medium error.

    A rewrite of a sector heals it at once, as a drive that maps a spare sector does; so does a discard.
    `permanent` sectors take writes and stay unreadable.
    """

    name: ClassVar[str] = "medium_error"
    summary: ClassVar[str] = "the data disk itself cannot read some of its sectors"
    operator_sees: ClassVar[str] = (
        "EIO from one file (ENODATA with O_DIRECT), sense key Medium Error and 'critical medium error, dev sda, "
        "sector …' in the kernel log; the sector logged is where the request began; the disk's ioerr_cnt rises"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"file": "/srv/data/x"},
        {"sector": ["2048+8"]},
        {"file": "/srv/data/x", "sectors": 64, "permanent": True},
    )
    place: ClassVar[type[Place]] = BadPlace
    holds: ClassVar[tuple[str, ...]] = ("data disk's medium",)
    stands_in_for: ClassVar[str] = _MAPPER

    file: str = Field(default="", description="path in the guest, or a pattern of which one match is taken")
    sector: tuple[str, ...] = Field(
        default=(), max_length=_MAX_RANGES, validate_default=True,
        description="START or START+COUNT in 512-byte sectors of the disk, not of a file",
    )  # fmt: skip
    sectors: int = Field(
        default=8, ge=1, le=512, description="how many sectors of the file, rounded up to its blocks"
    )
    permanent: bool = Field(default=False, description="a rewrite does not heal")
    seed: int = Field(default=0, ge=0, lt=2**63, description="chooses the file and the place in it")

    @field_validator("sector")
    @classmethod
    def _sectors_are_ranges(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if bool(value) == bool(info.data.get("file")):
            raise ValueError("give a file or sectors, one of the two")
        if sum(run.count for run in map(_run, value)) > MAX_SECTORS:
            raise ValueError(f"at most {MAX_SECTORS} sectors")
        return value

    @classmethod
    def instead_of(cls, parameters: Mapping[str, Any], target: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if parameters.get("schedule", "always") != "always" or target["disk"] != _DATA:
            return None
        same = {name: parameters[name] for name in ("permanent", "seed") if name in parameters}
        if parameters.get("file"):
            wanted = {name: parameters[name] for name in ("file", "sectors") if name in parameters}
            return {**same, **wanted}
        sectors = _merged((piece["base_start"], piece["length"]) for piece in target["pieces"])
        return {**same, "sector": sectors} if len(sectors) <= _MAX_RANGES else None

    def locate(self, bench: Bench) -> BadPlace:
        if self.file:
            return self._place_in_file(bench)
        with bench.qmp() as qmp:
            size = overlay.size_of(qmp, DISK_NODE) // SECTOR
        runs = tuple(_run(text) for text in self.sector)
        if any(run.start + run.count > size for run in runs):
            raise UsageError("--sector: behind the end of the disk", f"allowed: 0 to {size - 1}")
        return BadPlace(runs=runs)

    def _place_in_file(self, bench: Bench) -> BadPlace:
        plan = bench.agent().plan("where-is-it", _MAPPER, self._mapping())
        if plan.missing:
            lacking = "; ".join(f"{one.capability}: {one.reason}" for one in plan.missing)
            raise UsageError(f"--file: the node cannot say where the file is ({lacking})", "--sector START+COUNT")
        found = plan.target_data
        runs = (Run(start=p["base_start"], count=p["length"], offset=p["offset"]) for p in found["pieces"])
        return BadPlace(runs=tuple(runs), file=found["file"])

    def _mapping(self) -> Mapping[str, Any]:
        return {"file": self.file, "sectors": self.sectors, "seed": self.seed}

    def actions(self, place: Place) -> tuple[str, ...]:
        bad = _ours(place)
        reads = f"put a filter above the disk that answers reads of {len(bad.sectors)} sectors with a medium error"
        if self.permanent:
            return (reads, "have the disk use the filter")
        cache = (f"have the guest forget the cached pages of {bad.file}",) if bad.file else ()
        return (
            reads, "put an empty overlay above it that takes all writes", "have the disk use the overlay", *cache,
        )  # fmt: skip

    def notes(self, place: Place) -> PlanNotes:
        never = ["pages that a process has mapped or dirties all the time: they stay in the page cache"]
        if not self.file:
            never = ["blocks that are in the guest's page cache: reads of them do not reach the disk"]
        return PlanNotes(
            backend="blkdebug" if self.permanent else "blkdebug below a qcow2 overlay",
            covers=("every read that reaches the disk, whoever asks: files, device mapper, the raw device",),
            not_covered=tuple(never),
        )

    def signs(self, place: Place | None) -> tuple[Sign, ...]:
        when = "once the place is read from the disk"
        return (
            in_log("the block layer names the disk", r"critical medium error, dev sd[a-z]+, sector \d+", when),
            in_log("sense key", r"Sense Key : Medium Error", when),
            in_log("additional sense", r"Add\. Sense: Unrecovered read error", when),
            rises("errors of the disk", "/sys/block/sd*/device/ioerr_cnt", when=when),
        )

    def plant(self, bench: Bench, place: Place) -> None:
        rules = [
            {"event": "none", "iotype": "read", "errno": _ENODATA, "sector": sector, "once": False}
            for sector in _ours(place).sectors
        ]
        with bench.qmp() as qmp:
            bench.memory.put("failed_before", str(failed_reads(qmp, DISK)))
            qmp.execute(
                "blockdev-add", driver="blkdebug", node_name=_filter(bench), image=DISK_NODE, discard="unmap",
                inject_error=rules,
            )  # fmt: skip
            if not self.permanent:
                overlay.add(qmp, bench, below=_filter(bench))
            switch_drive(qmp, DISK, self._top(bench))

    def prove(self, bench: Bench, place: Place) -> None:
        """Read the place through the file, directly: the plan of the agent's own fault does. It has to fail.

        What the guest has of the file in its page cache it forgets before, so that its next read reaches the disk.
        """
        if not isinstance(place, BadPlace) or not place.file:
            return
        bench.run(("dd", f"if={place.file}", "iflag=nocache", "count=0", "status=none"))
        before = self.evidence(bench, place).hits
        with_error = ""
        try:
            bench.agent().plan("does-it-bite", _MAPPER, self._mapping())
        except LabctlError as error:
            with_error = error.message
        if self.evidence(bench, place).hits == before:
            raise LabError(f"{self.file} still reads well", with_error or "is it being written?")

    def heal(self, bench: Bench, place: Place) -> None:
        with bench.qmp() as qmp:
            if not self.permanent:
                overlay.take_away(qmp, bench, DISK)
            if drive_of(qmp, DISK).get("node-name") == _filter(bench):
                switch_drive(qmp, DISK, DISK_NODE)
            if _filter(bench) in block_nodes(qmp):
                qmp.execute("blockdev-del", node_name=_filter(bench))

    def leftovers(self, bench: Bench, place: Place) -> tuple[str, ...]:
        with bench.qmp() as qmp:
            left = [f"block node {name}" for name in block_nodes(qmp) if name.startswith(f"{bench.tag}-")]
            used = drive_of(qmp, DISK).get("node-name")
        if used != DISK_NODE:
            left.append(f"the disk uses {used}")
        if bench.files.overlay.exists():
            left.append(f"file {bench.files.overlay.name}")
        return tuple(left)

    def evidence(self, bench: Bench, place: Place) -> Evidence:
        with bench.qmp() as qmp:
            used = drive_of(qmp, DISK).get("node-name")
            there = _filter(bench) in block_nodes(qmp)
            failed = failed_reads(qmp, DISK) - int(bench.memory.get("failed_before") or 0)
        counters = {"bad_sectors": len(_ours(place).sectors), "failed_reads": failed}
        return Evidence(armed=there and used == self._top(bench), hits=failed, counters=counters)

    def settle(self, files: Files, place: Place, keep: bool) -> None:
        if not self.permanent:
            overlay.settle(files, keep)

    def _top(self, bench: Bench) -> str:
        return _filter(bench) if self.permanent else overlay.node_of(bench)


def _filter(bench: Bench) -> str:
    return f"{bench.tag}-bad"


def _run(text: str) -> Run:
    match = _RANGE.fullmatch(text)
    if match is None or int(match[2] or 1) < 1:
        raise ValueError(f"{text!r}: allowed: START or START+COUNT, such as 2048+8")
    return Run(start=int(match[1]), count=int(match[2] or 1))


def _merged(pieces: Iterable[tuple[int, int]]) -> list[str]:
    """Pieces that touch as one, each as it would be typed."""
    runs: list[tuple[int, int]] = []
    for start, count in sorted(pieces):
        if runs and sum(runs[-1]) == start:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((start, count))
    return [f"{start}+{count}" for start, count in runs]


def _ours(place: Place) -> BadPlace:
    if not isinstance(place, BadPlace):
        raise TypeError(f"{type(place).__name__} is no place of this fault")
    return place
