"""Runs on a node as root, with the node's own agent stopped: kills an agent after every journal record, for real.

Each life is a process of its own that plants a fault on the real kernel and takes it back, and gets SIGKILL right
after its n-th record is on disk. The next process starts as an agent does after a crash. Prints a line a life.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, "/opt/groundfault/lib")

from node_agent.host.real import RealHost
from node_agent.injector import Injector
from node_agent.probe import run_probes
from node_agent.probing import Probing

STATE = Path("/var/lib/groundfault")


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # told to the test, which fails on it
            print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    parameters, fault = json.loads(sys.argv[1]), sys.argv[2]
    capabilities = run_probes(RealHost())

    def agent(after_append: Callable[[str, int], None] | None = None) -> Injector:
        injector = Injector(RealHost(), STATE, "w2", after_append=after_append)
        injector.probing = Probing(RealHost(), capabilities)
        return injector

    def live(number: int) -> None:
        def kill(_: str, count: int) -> None:
            if count >= number:
                os.kill(os.getpid(), signal.SIGKILL)

        injector = agent(kill)
        injector.start()
        injector.apply(f"crash-{number}", fault, parameters, 300)
        injector.recover(None, "recover")

    def come_back(number: int) -> None:
        injector = agent()
        injector.start()
        (view,) = injector.injections(ended=True, ids=(f"crash-{number}",))
        residue = [str(d) for d in injector.residue()]
        print(json.dumps({"record": number, "state": view.state, "residue": residue}), flush=True)

    for number in range(1, 200):
        status = in_a_child(partial(live, number))
        assert in_a_child(partial(come_back, number)) == 0
        if status != -signal.SIGKILL:
            print(json.dumps({"whole_life": status, "records": number - 1}), flush=True)
            return


main()
