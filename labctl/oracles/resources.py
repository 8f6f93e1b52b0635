"""Whether anything is about to run out, or is fought over: memory, disk, descriptors, processes, ports, the CPU.

A service may answer well on a node whose disk is full tomorrow. Bounds are shares, so that they hold on small and
large nodes; the same at the gate and after.
"""

from __future__ import annotations

from collections.abc import Mapping

from labctl.oracles.nodes import on_each, python, watched
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

BOUNDS: Mapping[str, float] = {
    "memory_used": 0.92, "swap_used": 0.5, "disk_used": 0.9, "inodes_used": 0.9, "tasks_used": 0.85,
    "descriptors_used": 0.8, "files_used": 0.8, "pids_used": 0.8, "conntrack_used": 0.8, "ports_used": 0.7,
    "stolen": 0.2, "stalled_memory": 0.2, "stalled_io": 0.6,
}  # fmt: skip
"""The most of each that may be used, as a share; `stalled`: of the time, waiting for it. Waiting for the CPU has
no bound: on one processor something waits whenever two things run, and clients tell whether that is too long.
"""


class Resources(Oracle):
    """No share is above its bound: `bounds` over those of the module, by name (`disk_used`) or name and thing
    (`disk_used /srv/data`). No processor is missing that was there at the gate.

    `units` (node, unit): services whose own limits count. `sample_s`: how long CPU and stalls are watched.
    """

    units: tuple[tuple[str, str], ...] = ()
    paths: tuple[str, ...] = ("/", "/srv/data", "/run", "/tmp", "/dev/shm")  # noqa: S108 - places that fill up
    bounds: Mapping[str, float] = {}
    sample_s: float = 3.0
    without: tuple[str, ...] = ()
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "resources"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    @property
    def turn(self) -> int:
        return 0

    def look(self, lab: Lookout) -> Seen:
        return on_each(watched(lab, self.without), lambda node: self._look(lab, node))

    def _look(self, lab: Lookout, node: str) -> Seen:
        mine = [unit for where, unit in self.units if where == node]
        given = {"paths": list(self.paths), "units": mine, "sample_s": self.sample_s}
        seen: Seen = python(lab, node, "resources", given, timeout_s=self.sample_s + 60.0)
        return seen

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        bounds = {**BOUNDS, **self.bounds}
        bad: list[str] = []
        measures: dict[str, float] = {}
        for node, seen in sorted(after.items()):
            for what, value in sorted(seen.items()):
                most = bounds.get(what, bounds.get(what.split()[0]))
                if most is not None and value > most:
                    bad.append(f"{node}: {what} is {value:.0%}, allowed {most:.0%}")
            if seen["cpus"] < before[node]["cpus"]:
                bad.append(f"{node}: {seen['cpus']} processors, there were {before[node]['cpus']}")
            measures |= {
                f"{node}_{what}": seen[what] for what in ("memory_used", "stolen", "idle") if what in seen
            }
        return self.found(Outcome.FAIL if bad else Outcome.PASS, *bad, **measures)
