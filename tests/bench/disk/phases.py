"""Runs on the node: where the agent's time goes when it plants a fault and takes it back, part by part.

`python3 -I phases.py < request` with the request as JSON: fault, parameters, runs, capabilities, node. It is the
agent's own injector, with a journal of its own beside the agent's, on the same disk. Functions are wrapped so that
the clock runs for the innermost one only: the parts of one injection add up to its time. Prints JSON: a list for
each verb, of one object a run, of milliseconds by part.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

STATE = Path("/var/lib/groundfault-bench")


class Meter:
    """Time by part: what is called within a part counts for itself."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._stack = ["everything else"]
        self._since = time.perf_counter()

    def _turn(self) -> None:
        now = time.perf_counter()
        self.spent[self._stack[-1]] = self.spent.get(self._stack[-1], 0.0) + now - self._since
        self._since = now

    def start(self) -> None:
        self.spent, self._since = {}, time.perf_counter()

    def stop(self) -> dict[str, float]:
        self._turn()
        return {part: round(1000 * spent, 3) for part, spent in self.spent.items()}

    def wrapped(self, name: str | Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._stack.append(name if isinstance(name, str) else name(*args))
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._stack.pop()

        return run

    def wrap(self, home: Any, attribute: str, name: str | Callable[..., str]) -> None:
        setattr(home, attribute, self.wrapped(name, getattr(home, attribute)))


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def instrument(meter: Meter) -> None:
    """Wrap what may cost: the journal, looks at the state of the host, device mapper, loop devices, programs."""
    from node_agent import injector, journal, residue
    from node_agent.baseline import Baseline
    from node_agent.catalog import catalog
    from node_agent.host import bounded, disk, dm, log, loop
    from node_agent.steps.base import Step

    for name in ("fsync", "fdatasync"):
        meter.wrap(os, name, "syncs")  # those of the journal and of the baseline
    for name in ("create", "close"):
        meter.wrap(journal.Journal, name, "journal: the rest")
    meter.wrap(journal.Entry, "append", "journal: the rest")
    meter.wrap(Baseline, "write", "baseline: write")
    meter.wrap(injector, "gather_facts", "facts")
    meter.wrap(injector, "make_fault", "parameters")
    for category, look in list(residue.CATEGORIES.items()):
        residue.CATEGORIES[category] = meter.wrapped(f"residue: {category}", look)  # type: ignore[index]
    for fault in catalog().values():
        for name in ("locate", "steps", "prove", "evidence"):
            if name in vars(fault):
                meter.wrap(fault, name, f"fault: {name}")
    for step in _subclasses(Step):
        for name in ("capture", "apply", "revert", "leftovers"):
            if name in vars(step):
                meter.wrap(step, name, f"step {step.__name__}: {name}")
    for name in ("create", "swap", "remove", "message", "table", "info", "list"):
        meter.wrap(dm.DeviceMapper, name, f"dm: {name}")
    vars(dm)["within"] = meter.wrapped("dm: suspend and resume", bounded.within)
    for name in ("attach", "detach", "list"):
        meter.wrap(loop.LoopDevices, name, f"loop: {name}")
    for name in ("mark", "since"):
        meter.wrap(log.KernelLog, name, "kernel log")
    for name in ("extents", "direct_read", "cached", "drop_pages"):
        meter.wrap(disk.Disks, name, f"disk: {name}")
    meter.wrap(subprocess, "run", lambda argv, *_: f"program: {argv[0]}")


def main() -> int:
    from node_agent.fault import Capability
    from node_agent.host.real import RealHost
    from node_agent.injector import Injector
    from node_agent.probing import Probing

    wanted = json.load(sys.stdin)
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(mode=0o700)
    meter = Meter()
    injector = Injector(RealHost(), STATE, wanted["node"])
    known = {one["name"]: Capability.model_validate(one) for one in wanted["capabilities"]}
    injector.probing = Probing(RealHost(), known)
    instrument(meter)
    found: dict[str, list[dict[str, float]]] = {"inject": [], "recover": []}
    for number in range(wanted["runs"]):
        name = f"phases-{number}"
        meter.start()
        injector.apply(name, wanted["fault"], {**wanted["parameters"], "seed": number}, 120)
        found["inject"].append(meter.stop())
        meter.start()
        injector.recover((name,), "recover")
        found["recover"].append(meter.stop())
    shutil.rmtree(STATE)
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
