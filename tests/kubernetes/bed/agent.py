"""Serves the real agent in a node of the test bed. `python agent.py CONFIG STATE RUN LISTEN`.

Only its probes are left out: three nodes would try one kernel's devices, tables and clocks at once, and that is
this machine's. So a fault that needs a capability lacks it here. Signals and freezing need none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import node_agent.probing
from node_agent.fault import Capability
from node_agent.host import Host
from node_agent.serve import serve


def no_probes(host: Host, goes_on: Callable[[], bool] = lambda: True) -> Mapping[str, Capability]:
    """Nothing is tried out."""
    return {}


if __name__ == "__main__":
    node_agent.probing.run_probes = no_probes  # type: ignore[attr-defined]
    names = ("config", "state", "run", "listen")
    sys.exit(serve(dict(zip(names, sys.argv[1:], strict=True))))
