"""The record of hardware injections: one file each, written and flushed before anything is planted.

A record says all that is needed to take the fault back, so that whoever comes next can: another `labctl`, the
lab's watchdog, or the lab itself before it restores or boots the machine. Leases are counted on this computer's
boot clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from labctl.errors import LabError
from labctl.lab.files import locked, write_atomic
from node_agent.fault import Evidence
from node_agent.injection import InjectionState, InjectionView

LOCK_S = 120.0
KEPT = 100
"""Records of injections that are over, of each node."""


def boot_clock() -> float:
    """Seconds since this computer booted, on the clock that nobody can step and that counts its sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Which boot of this computer it is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Record(BaseModel):
    """One injection. Times in seconds of the boot clock; `process` is the QEMU it was planted in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    node: str
    fault: str
    parameters: Mapping[str, Any]
    state: InjectionState
    place: Mapping[str, Any]
    target: str
    backend: str
    boot: str
    began: float
    lease_s: float
    expires: float
    process: str
    mark: Mapping[str, Any] | None = None
    memory: Mapping[str, str] = {}
    evidence: Evidence | None = None
    residue: tuple[str, ...] = ()
    reason: str = ""
    error: str = ""
    next_try: float = 0.0
    tries: int = 0

    @property
    def live(self) -> bool:
        """Whether something of it may stand."""
        return self.state != "recovered"

    def expired(self, now: float, boot: str) -> bool:
        """Whether its lease is over. After a reboot of this computer it is: no machine has outlived that."""
        return boot != self.boot or now >= self.expires

    def view(self, now: float, evidence: Evidence | None) -> InjectionView:
        """As `labctl` shows it."""
        return InjectionView(
            id=self.id, node=self.node, fault=self.fault, parameters=self.parameters, state=self.state,
            target=self.target, backend=self.backend, lease_s=self.lease_s,
            expires_in_s=max(0.0, self.expires - now), age_s=max(0.0, now - self.began),
            evidence=evidence, residue=self.residue, reason=self.reason, error=self.error,
            data_lost=evidence.lost if evidence else (),
        )  # fmt: skip


class Journal:
    """The records of one node of a lab, below the lab's directory."""

    def __init__(self, lab: Path, node: str) -> None:
        self._directory = lab / "hardware" / node

    def records(self) -> tuple[Record, ...]:
        """All of them, oldest first. Raises LabError where one cannot be read."""
        found = []
        for path in self._directory.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append(self._read(path))
        return tuple(sorted(found, key=lambda one: (one.boot, one.began)))

    def live(self) -> tuple[Record, ...]:
        """Those that may stand."""
        return tuple(one for one in self.records() if one.live)

    def find(self, injection_id: str) -> Record | None:
        """The record of that id."""
        try:
            return self._read(self._directory / f"{injection_id}.json")
        except FileNotFoundError:
            return None

    def write(self, record: Record) -> Record:
        """Keep it: on the disk when this returns."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._directory / f"{record.id}.json", record.model_dump_json(indent=1).encode())
        self._flush_names()
        return record

    def prune(self) -> None:
        """Forget the oldest of those that are over."""
        over = [one for one in self.records() if not one.live]
        for one in over[: max(0, len(over) - KEPT)]:
            (self._directory / f"{one.id}.json").unlink(missing_ok=True)

    @property
    def stopped(self) -> bool:
        """Whether `labctl stop` is in force."""
        return (self._directory / "stopped").exists()

    def set_stopped(self, stopped: bool) -> None:
        """Refuse new hardware faults, or allow them again."""
        if stopped:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._directory / "stopped").touch()
        else:
            (self._directory / "stopped").unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, timeout: float = LOCK_S, waiting: Callable[[str], None] = lambda text: None) -> Iterator[None]:
        """Hold the node's hardware: one at a time changes it. The lab's lock, where needed, comes first."""
        with locked(self._directory / ".lock", f"the hardware of {self._directory.name}", timeout, waiting):
            yield

    def _read(self, path: Path) -> Record:
        try:
            return Record.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise LabError(
                f"{path} cannot be read ({error.errors()[0]['msg']})",
                "end the lab (labctl down --destroy): nothing else tells what was planted",
            ) from None

    def _flush_names(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class RecordMemory:
    """See :class:`labctl.hardware.bench.Memory`."""

    def __init__(self, journal: Journal, record: Record) -> None:
        self._journal, self.record = journal, record

    def get(self, name: str) -> str:
        return self.record.memory.get(name, "")

    def put(self, name: str, value: str) -> None:
        self.change(memory={**self.record.memory, name: value})

    def change(self, **changes: Any) -> Record:
        """Another version of the record, kept at once."""
        self.record = self._journal.write(self.record.model_copy(update=changes))
        return self.record
