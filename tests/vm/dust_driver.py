"""Runs on a node with dm-dust as root: plants bad sectors as on a kernel that has dm-dust and no snapshots.

An agent of its own, in this process, with a journal of its own. It says what it planted, as JSON, waits for a
line, says what the evidence is by then, waits for another, recovers, and says what is left.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from node_agent.fault import Capability
from node_agent.host.real import RealHost
from node_agent.injection import InjectionView
from node_agent.injector import Injector
from node_agent.probe import run_probes
from node_agent.probing import Probing


def say(view: InjectionView, **more: Any) -> None:
    assert view.evidence is not None
    told = {"state": view.state, "backend": view.backend, "target": view.target, "residue": list(view.residue)}
    print(json.dumps({**told, "evidence": view.evidence.model_dump(), **more}), flush=True)


def main() -> None:
    state = tempfile.TemporaryDirectory(prefix="dust-")
    host = RealHost()
    injector = Injector(host, Path(state.name), "dust")
    lacks = Capability(name="dm.snapshot", available=False, reason="taken away for this test")
    injector.probing = Probing(host, {**run_probes(host), "dm.snapshot": lacks})
    try:
        say(injector.apply("dust-1", "latent_sector_error", {"file": sys.argv[1], "seed": 5}, 300))
        sys.stdin.readline()
        say(injector.view("dust-1"))
        sys.stdin.readline()
    finally:
        views = injector.recover(None, "recover")
    for view in views:
        say(view, differences=[str(d) for d in injector.residue()])


main()
