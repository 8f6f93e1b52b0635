"""A quota of CPU time for control groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo

UNLIMITED = "max"
_USUAL_PERIOD_US = 100_000
_GONE = (FileNotFoundError, ProcessLookupError)


class CpuQuota(Step):
    """Sets cpu.max of the control groups `folders` below `root` to `value`, "microseconds period".

    The controller cpu is switched on above them where it is off, and off again at the end unless somebody has come
    to use it. What is written back is what was there; for a unit of systemd whose CPUQuota= was changed meanwhile,
    what that says now. A control group that was made anew, as a restart of its unit does, is no other case. One
    that is gone took its quota along, so reverting twice equals once.

    Source: Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files".
    """

    kind: Literal["cpu_quota"] = "cpu_quota"
    root: str
    folders: Annotated[tuple[str, ...], Field(min_length=1)]
    value: str = Field(pattern=r"^\d+ \d+$")
    units: tuple[str, ...] = ()
    """The unit of systemd that each of the folders is of; empty where they are none's."""
    was: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    """What cpu.max said and where the controller was off when this was planned, should the journal lose it."""

    def describe(self) -> str:
        return f"write {self.value} to cpu.max of {', '.join(self.folders)}"

    def resources(self) -> tuple[Resource, ...]:
        return tuple(Resource("value", f"{folder}/cpu.max") for folder in self.folders)

    def capture(self, reader: Reader) -> Undo:
        quotas = {unit: _of_unit(reader, unit) for unit in self.units}
        switched = [path for path in switches_above(self.root, self.folders) if not _is_on(reader, path)]
        values = {folder: quota_of(reader, folder) for folder in self.folders}
        for folder, had in values.items():
            if had and _share(had) <= _share(self.value):
                text = f"{folder} has a quota of {100 * _share(had):g} % already"
                raise ConflictError(text, field="quota_percent", allowed=f"less than {100 * _share(had):g}")
        return {"values": values, "switched": switched, "quotas": quotas}

    def apply(self, host: Host) -> None:
        for path in switches_above(self.root, self.folders):
            if not _is_on(host, path):
                host.write_text(path, "+cpu\n")
        for folder in self.folders:
            host.write_text(f"{folder}/cpu.max", f"{self.value}\n")

    def revert(self, host: Host, undo: Undo | None) -> None:
        for folder, before in self._ours(host, undo).items():
            with suppress(*_GONE):
                host.write_text(f"{folder}/cpu.max", f"{before}\n")
        for path in self._left_on(host, undo):
            host.write_text(path, "-cpu\n")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        quotas = tuple(f"{folder}/cpu.max still says {self.value}" for folder in self._ours(reader, undo))
        return (*quotas, *(f"the controller cpu is on in {path}" for path in self._left_on(reader, undo)))

    def _ours(self, reader: Reader, undo: Undo | None) -> dict[str, str]:
        """The folders that have our quota and should have another, which is the value."""
        found = {}
        for number, folder in enumerate(self.folders):
            unit = self.units[number] if number < len(self.units) else ""
            before = self._before(reader, folder, unit, undo)
            if quota_of(reader, folder) == self.value != before:
                found[folder] = before
        return found

    def _before(self, reader: Reader, folder: str, unit: str, undo: Undo | None) -> str:
        if unit:
            quota = _of_unit(reader, unit)
            if undo is None or quota != undo["quotas"].get(unit, quota):
                return quota
        planned = dict(zip(self.folders, self.was, strict=False))
        kept = str(undo["values"].get(folder, "")) if undo else planned.get(folder, "")
        return kept or f"{UNLIMITED} {_USUAL_PERIOD_US}"

    def _left_on(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        """Where the controller is on only because of this step, the lowest first."""
        switched = undo["switched"] if undo else self.off
        return tuple(path for path in reversed(switched) if _is_on(reader, path) and not _is_used(reader, path))


def switches_above(root: str, folders: Sequence[str]) -> tuple[str, ...]:
    """cgroup.subtree_control of every control group above these, from the top, each once."""
    found: dict[str, None] = {}
    for folder in folders:
        parts = folder.removeprefix(root).strip("/").split("/")
        paths = [root, *(f"{root}/{'/'.join(parts[:n])}" for n in range(1, len(parts)))]
        found |= dict.fromkeys(f"{path}/cgroup.subtree_control" for path in paths)
    return tuple(found)


def quota_of(reader: Reader, folder: str) -> str:
    """What cpu.max says; empty where the controller is off, or the control group is gone."""
    with suppress(*_GONE):
        return reader.read_text(f"{folder}/cpu.max").strip()
    return ""


def _share(value: str) -> float:
    """Of one CPU; infinite without a limit."""
    quota, _, period = value.partition(" ")
    return math.inf if quota == UNLIMITED else int(quota) / int(period)


def _of_unit(reader: Reader, unit: str) -> str:
    """What systemd writes to cpu.max of a unit for its CPUQuota= (systemd.resource-control(5))."""
    state = reader.services.state(unit)
    period = _microseconds(state.period_us) or _USUAL_PERIOD_US
    quota = _microseconds(state.quota_us)
    return f"{UNLIMITED} {period}" if quota is None else f"{quota * period // 1_000_000} {period}"


_SCALE = {"us": 1, "ms": 1000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def _microseconds(text: str) -> int | None:
    """A span as systemctl shows it: "1min 30s", "500ms", "infinity" (None) (systemd.time(7))."""
    if not text or text == "infinity":
        return None
    total = 0.0
    for word in text.split():
        digits = word.rstrip("abcdefghijklmnopqrstuvwxyz")
        total += float(digits) * _SCALE.get(word[len(digits) :], 1)
    return round(total)


def _is_on(reader: Reader, path: str) -> bool:
    with suppress(*_GONE):
        return "cpu" in reader.read_text(path).split()
    return False


_DEFAULTS = {"cpu.max": (UNLIMITED,), "cpu.weight": ("100",), "cpu.idle": ("0",), "cpu.uclamp.min": ("0.00",),
             "cpu.uclamp.max": (UNLIMITED,), "cpu.max.burst": ("0",)}  # fmt: skip


def _is_used(reader: Reader, switch: str) -> bool:
    """Whether a control group below has a setting of the controller, or hands it on."""
    folder = switch.rpartition("/")[0]
    for name, usual in _DEFAULTS.items():
        for path in reader.glob(f"{folder}/*/{name}"):
            with suppress(*_GONE):
                if reader.read_text(path).split()[:1] != list(usual):
                    return True
    return any(_is_on(reader, path) for path in reader.glob(f"{folder}/*/cgroup.subtree_control"))
