"""Whether services run, and have run all through the window: one that was just restarted is up, and not well."""

from __future__ import annotations

from labctl.oracles.nodes import on_each, run, sections, watched
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_FIELDS = ("Id", "ActiveState", "SubState", "UnitFileState", "NRestarts", "MainPID", "Result")
_STAMPS = ("ActiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic")
SLACK_S = 1.0


class Units(Oracle):
    """Each of `units` (node, unit) is active, starts at boot as it did, and has run since the window began.

    No unit at all has failed on any node, but for those of `may_fail`. Nodes of `without` are left out.
    """

    units: tuple[tuple[str, str], ...]
    may_fail: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "units"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    def look(self, lab: Lookout) -> Seen:
        return on_each(watched(lab, self.without), lambda node: self._look(lab, node))

    def _look(self, lab: Lookout, node: str) -> Seen:
        mine = [unit for where, unit in self.units if where == node]
        show = f"systemctl show -p {','.join((*_FIELDS, *_STAMPS))} -- {' '.join(mine)}" if mine else ":"
        script = (
            f"cut -d' ' -f1 /proc/uptime\n{show} | sed 's/^$/-/'\n"
            "echo '## failed'\nsystemctl list-units --state=failed --plain --no-legend --full | cut -d' ' -f1\n"
        )
        parts = sections("## units\n" + run(lab, node, script))
        uptime, *lines = parts["units"]
        shown: dict[str, dict[str, str | float]] = {}
        for block in "\n".join(lines).split("\n-\n"):
            fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            if fields:
                shown[fields["Id"]] = {
                    **{k: fields.get(k, "") for k in _FIELDS},
                    "runs_s": round(float(uptime) - max(int(fields.get(k, 0)) for k in _STAMPS) / 1e6, 3),
                }
        return {"units": shown, "failed": parts.get("failed", ())}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        bad: list[str] = []
        long_s = window.looked - window.begin_s
        restarts = 0
        for node, unit in self.units:
            if node in self.without:
                continue
            was, now = before[node]["units"].get(unit), after[node]["units"].get(unit)
            if was is None or now is None:
                bad.append(f"{node}: there is no {unit}")
                continue
            restarts += int(now["NRestarts"] or 0)
            if now["ActiveState"] != "active":
                bad.append(f"{node}: {unit} is {now['ActiveState']} ({now['SubState']}, {now['Result']})")
            elif now["runs_s"] < long_s - SLACK_S:
                bad.append(f"{node}: {unit} runs for {now['runs_s']:.0f} s only, the window has {long_s:.0f} s")
            if now["UnitFileState"] != was["UnitFileState"]:
                bad.append(f"{node}: {unit} is {now['UnitFileState']}, was {was['UnitFileState']}")
        for node in sorted(after):
            bad += [f"{node}: {unit} has failed" for unit in after[node]["failed"] if unit not in self.may_fail]
        return self.found(Outcome.FAIL if bad else Outcome.PASS, *bad, restarts=restarts)
