"""A process that takes the link of an interface away and gives it back, in turn. Run as a script by an injection.

Its first line of standard input is JSON: :class:`node_agent.flapping.Flapping`. It ends with its standard input or
by SIGTERM, and then the link is up. A kill leaves the link as it is: what is journaled brings it up.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from node_agent.flapping import Flapping
from node_agent.host.routing import Routing
from node_agent.host.rtnetlink import KernelRouting
from node_agent.steps.link_state import bring_up, find_link

_LOOK_S = 0.5
"""While it is up: the kernel takes some entries only a while after the link."""


class _Told(Exception):
    """SIGTERM."""


def main() -> int:
    """Flap until standard input ends."""
    wanted = Flapping.model_validate_json(sys.stdin.readline())
    routing = KernelRouting()
    signal.signal(signal.SIGTERM, _stop)
    print("ready", flush=True)
    try:
        for up, seconds in wanted.phases():
            if find_link(routing, wanted.state.index) is None or not _phase(routing, wanted, up, seconds):
                break
    except _Told:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    bring_up(routing, wanted.state, timeout_s=0)
    return 0


def _phase(routing: Routing, wanted: Flapping, up: bool, seconds: float) -> bool:
    """One phase; False where standard input has ended."""
    end = time.monotonic() + seconds
    if not up and not (wanted.state.way != "down" and routing.set_carrier(wanted.state.index, False)):
        routing.set_up(wanted.state.index, False)
    whole = not up
    while (rest := end - time.monotonic()) > 0:
        if not whole:
            whole = bring_up(routing, wanted.state, timeout_s=0)
        if (
            select.select([sys.stdin], [], [], rest if whole else min(rest, _LOOK_S))[0]
            and not sys.stdin.readline()
        ):
            return False
    return True


def _stop(*_: object) -> None:
    raise _Told


if __name__ == "__main__":
    sys.exit(main())
