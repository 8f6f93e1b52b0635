"""Units that run again at the end, where a fault has ended them."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.host.processes import UnitState
from node_agent.steps.base import Resource, Step, Undo

_ASKED_TO_STOP = "stop"


class UnitAgain(Step):
    """Changes nothing at first; reverting starts these units where they ran before and do not run now.

    A unit that an administrator has stopped meanwhile stays stopped: its last job since the injection is a stop,
    by the system's journal. So does one that is masked, or that systemd has forgotten. `once`: also one that has
    run again since, because then it ended of something else; its invocation is another one (systemd.exec(5)).
    Not `once`: systemd forgets how often the unit was started of late, so that the start limit, which counts the
    fault's doing, does not end it after the recovery.

    Starting a unit that runs does nothing, so reverting twice equals once.
    """

    kind: Literal["unit_again"] = "unit_again"
    units: tuple[str, ...]
    once: bool

    def describe(self) -> str:
        return (
            f"remember that {', '.join(self.units)} runs: recovery starts it again where this fault has ended it"
        )

    def resources(self) -> tuple[Resource, ...]:
        return () if self.once else tuple(Resource("value", f"unit {unit}") for unit in self.units)

    def capture(self, reader: Reader) -> Undo:
        ran = {unit: reader.services.state(unit) for unit in self.units}
        runs = {unit: state.invocation for unit, state in ran.items() if state.runs}
        return {"runs": runs, "mark": reader.services.mark(), "boot": reader.boot_id()}

    def apply(self, host: Host) -> None:
        """Nothing to do."""

    def revert(self, host: Host, undo: Undo | None) -> None:
        for unit in self.units:
            now = host.services.state(unit)
            if now.runs:
                if not self.once:
                    host.services.forget(unit)
            elif self._is_missed(host, now, undo):
                host.services.start(unit, forget=not self.once or now.active == "failed")

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        states = (reader.services.state(unit) for unit in self.units)
        return tuple(
            f"{s.unit} is {s.active} ({s.result}), it ran before" for s in states if self._down(reader, s, undo)
        )

    def _down(self, reader: Reader, now: UnitState, undo: Undo | None) -> bool:
        return not now.runs and self._is_missed(reader, now, undo)

    def _is_missed(self, reader: Reader, now: UnitState, undo: Undo | None) -> bool:
        """Whether a unit that does not run should."""
        if now.load != "loaded":
            return False
        if undo is None:
            return now.active == "failed"
        if now.unit not in undo["runs"] or undo["boot"] != reader.boot_id():
            return False
        if self.once and now.invocation not in ("", undo["runs"][now.unit]):
            return False
        job = reader.services.last_job(now.unit, undo["mark"])
        # systemd forgets the invocation of a unit that has ended well. A start that it does by itself is a job.
        return not job if self.once and not now.invocation else job != _ASKED_TO_STOP
