"""Serves the real agent in a node of the test bed. `python agent.py CONFIG STATE RUN LISTEN`.

Only its probes are left out: three nodes would try one kernel's devices, tables and clocks at once, and that is
this machine's. So a fault that needs a capability lacks it here. Signals and freezing need none.
"""

from __future__ import annotations

import sys

import node_agent.injector
from node_agent.serve import serve

if __name__ == "__main__":
    node_agent.injector.run_probes = lambda host: {}  # type: ignore[attr-defined]
    names = ("config", "state", "run", "listen")
    sys.exit(serve(dict(zip(names, sys.argv[1:], strict=True))))
