"""Runs on a node as root, with the node's own agent stopped: kills an agent at random moments of a fault's life.

Arguments: a seed, how many lives, a file to spoil. Each life is a process of its own that plants a fault and takes
it back, and gets SIGKILL after a time that the seed decides. The next process starts as an agent does after a
crash. Prints a line a life: after which part of it the kill came, and what is left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from node_agent.host.real import RealHost
from node_agent.injector import Injector
from node_agent.probe import run_probes
from node_agent.probing import Probing

STATE = Path("/var/lib/groundfault")


def forked(work: Callable[[], None]) -> int:
    """The process that runs `work`."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # told to the test, which fails on it
            print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    seed, lives, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    capabilities = run_probes(RealHost())
    dice = random.Random(seed)
    faults: tuple[tuple[str, dict[str, Any]], ...] = (
        ("disk_slow", {"read_ms": 5, "write_ms": 5}),
        ("latent_sector_error", {"file": path, "seed": 5, "backend": "dm"}),
        ("write_error", {"file": path}),
    )

    def agent() -> Injector:
        injector = Injector(RealHost(), STATE, "driver")
        injector.probing = Probing(RealHost(), capabilities)
        injector.start()
        return injector

    def live(name: str, fault: tuple[str, dict[str, Any]]) -> None:
        injector = agent()
        injector.apply(name, *fault, 300)
        injector.recover(None, "recover")

    def come_back(name: str, part: float) -> None:
        injector = agent()
        states = [view.state for view in injector.injections(ended=True, ids=(name,))]
        residue = [str(d) for d in injector.residue()]
        suspended = [info.name for info in RealHost().dm.list() if info.suspended]
        line = {"part": part, "states": states, "residue": residue, "suspended": suspended}
        print(json.dumps(line), flush=True)

    lengths = []
    for number, fault in enumerate(faults):
        began = time.monotonic()
        assert ended(forked(partial(live, f"whole-{number}", fault))) == 0
        lengths.append(time.monotonic() - began)
    for number in range(lives):
        which = number % len(faults)
        name, part = f"cut-{number}", dice.random()
        pid = forked(partial(live, name, faults[which]))
        time.sleep(part * lengths[which])
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        assert ended(forked(partial(come_back, name, part))) == 0


main()
