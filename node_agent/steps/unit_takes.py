"""A service that takes its settings anew."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from node_agent.host import CommandError, Host, Reader
from node_agent.steps.base import Resource, Step, Undo

_S = 90.0


class UnitTakes(Step):
    """Restarts or reloads `unit` after its settings were changed (`when` apply) or put back (`when` revert).

    Two of it stand around the change: the first has nothing to apply and reverts last. `manager`: systemd itself
    has to read unit files first. A unit that did not run stays as it is; so does one that somebody has stopped
    meanwhile, by the last job in the system's journal. One that has failed of its settings is started again.
    """

    volatile: ClassVar[bool] = False

    kind: Literal["unit_takes"] = "unit_takes"
    unit: str = Field(pattern=r"^[A-Za-z0-9:_.@\\-]+$")
    when: Literal["apply", "revert"]
    how: Literal["restart", "reload"] = "restart"
    manager: bool = False
    ran: bool = True

    def describe(self) -> str:
        moment = "now" if self.when == "apply" else "when it is put back"
        return f"let {self.unit} take its settings {moment} ({self.how})"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("value", f"unit {self.unit}"),) if self.when == "revert" else ()

    def capture(self, reader: Reader) -> Undo:
        return {"mark": reader.services.mark()} if self.when == "revert" else {}

    def apply(self, host: Host) -> None:
        if self.when == "apply":
            self._read_unit_files(host)
            if self.ran:
                self._take(host)

    def revert(self, host: Host, undo: Undo | None) -> None:
        if self.when == "apply":
            return
        self._read_unit_files(host)
        stopped = undo is not None and host.services.last_job(self.unit, str(undo["mark"])) == "stop"
        if not self.ran or stopped:
            return
        if not host.services.state(self.unit).runs:
            host.services.start(self.unit, forget=True)
        else:
            self._take(host)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if self.when == "revert" and self.ran and reader.services.state(self.unit).active == "failed":
            return (f"{self.unit} has failed and does not start again",)
        return ()

    def _read_unit_files(self, host: Host) -> None:
        if self.manager:
            host.run(("systemctl", "daemon-reload"), timeout_s=_S)

    def _take(self, host: Host) -> None:
        word = "restart" if self.how == "restart" else "reload-or-restart"
        try:
            host.run(("systemctl", word, "--", self.unit), timeout_s=_S)
        except CommandError:
            if self.when == "revert":
                raise
            # A service that does not start with a wrong setting is what this is for; the evidence tells its state.
