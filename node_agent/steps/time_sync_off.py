"""The services that keep the clock in step, stopped for a while."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo


class TimeSyncOff(Step):
    """Stops `units`; reverting starts those of them that ran, and no other.

    First among them are the sockets, timers and paths that would start a service again. Whether a unit is enabled
    is not touched, so a reboot starts what it always starts. A unit that somebody has started meanwhile runs
    already, and one that is not installed any more is gone: twice equals once.
    """

    kind: Literal["time_sync_off"] = "time_sync_off"
    units: Annotated[tuple[str, ...], Field(min_length=1)]

    def describe(self) -> str:
        return f"stop {', '.join(self.units)}, so that nobody corrects the clock"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("clock", "time sync"),)

    def capture(self, reader: Reader) -> Undo:
        return {"ran": list(reader.clock.active(self.units))}

    def apply(self, host: Host) -> None:
        host.clock.stop_units(self.units)

    def revert(self, host: Host, undo: Undo | None) -> None:
        missing = self._missing(host, undo)
        if missing:
            host.clock.start_units(missing)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"{unit} does not run again" for unit in self._missing(reader, undo))

    def _missing(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(reader.clock.missing(tuple(undo["ran"]) if undo else self.units))
