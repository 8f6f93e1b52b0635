"""Units of systemd, asked and started again by systemctl(1); who stopped one is in the journal (journalctl(1))."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from contextlib import suppress

from node_agent.host import units
from node_agent.host.processes import UnitState
from node_agent.host.tool import run_tool

_PROPERTIES = {
    "LoadState": "load", "ActiveState": "active", "SubState": "sub", "Result": "result", "Restart": "restart",
    "InvocationID": "invocation", "ControlGroup": "group", "WatchdogUSec": "watchdog",
    "CPUQuotaPerSecUSec": "quota_us", "CPUQuotaPeriodUSec": "period_us",
}  # fmt: skip
_NUMBERS = {"MainPID": "main_pid", "NRestarts": "restarts"}
_JOBS = ("start", "stop", "restart")

Query = Callable[[tuple[str, ...]], str | None]


class SystemdUnits:
    """The real :class:`node_agent.host.processes.Services`. `query` runs a command that only looks."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def state(self, unit: str) -> UnitState:
        names = ",".join((*_PROPERTIES, *_NUMBERS, "Transient"))
        shown = self._query(("systemctl", "show", f"--property={names}", "--", unit))
        if shown is None:
            raise OSError(errno.EAGAIN, f"systemd does not answer about {unit}")
        said = dict(line.partition("=")[::2] for line in shown.splitlines())
        words = {ours: said.get(theirs, "") for theirs, ours in _PROPERTIES.items()}
        numbers = {ours: int(said.get(theirs, "0") or 0) for theirs, ours in _NUMBERS.items()}
        return UnitState(unit, **words, **numbers, transient=said.get("Transient") == "yes")  # type: ignore[arg-type]

    def mark(self) -> str:
        shown = self._query(("journalctl", "--quiet", "--lines=1", "--show-cursor", "--output=cat")) or ""
        return next((line[11:] for line in shown.splitlines()[::-1] if line.startswith("-- cursor: ")), "")

    def last_job(self, unit: str, mark: str) -> str:
        if not mark:
            return ""
        jobs = (f"JOB_TYPE={job}" for job in _JOBS)
        shown = self._query(
            ("journalctl", "--quiet", "--output=json", f"--after-cursor={mark}", f"UNIT={unit}", *jobs)
        )
        last = ""
        for line in (shown or "").splitlines():
            with suppress(json.JSONDecodeError):
                last = str(json.loads(line).get("JOB_TYPE", ""))
        return last

    def start(self, unit: str, *, forget: bool) -> None:
        keeper = "groundfault-keeps-" + re.sub(r"[^a-z0-9]", "-", unit.lower())[:100]
        # systemd drops a transient unit the moment its failure is forgotten, unless another one refers to it.
        kept = forget and self.state(unit).transient
        if kept:
            units.keep_loaded(keeper, (unit,))
        if forget:
            self.forget(unit)
        units.start((unit,), keeper)

    def forget(self, unit: str) -> None:
        run_tool(("systemctl", "reset-failed", "--", unit), units.SYSTEMCTL_S).checked()
