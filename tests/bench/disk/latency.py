"""How long planting a fault and taking it back takes, idle and under full load, and what others notice of it.

Timed is the whole answer of the agent over an open gRPC connection: planned, journalled, applied, proven,
verified.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from node_agent.injection import InjectionView
from tests.bench.disk import fio
from tests.lab import ssh, ssh_argv

VICTIM, LOAD = "/srv/data/victim", "/srv/data/load"
VICTIM_MIB, LOAD_MIB = 4, 96
PHASES = Path(__file__).with_name("phases.py")
LEASE_S = 600.0
_PHASES_S = 600.0


@dataclass
class Times:
    """Seconds, one a run."""

    inject: list[float] = field(default_factory=list)
    recover: list[float] = field(default_factory=list)


def prepare(node: Node) -> None:
    """A file to spoil, and one for the load, both written out."""
    ssh(node, f"head -c {VICTIM_MIB}M /dev/urandom > {VICTIM}; head -c {LOAD_MIB}M /dev/zero > {LOAD}; sync")


def full_load(path: str = LOAD, size_mib: int = LOAD_MIB, rw: str = "randrw") -> tuple[str, ...]:
    """The job that the disk is busy with: 4 KiB at random, reads and writes, 16 in flight."""
    return fio.job("load", path, rw=rw, size_mib=size_mib)


def cycle(
    agent: AgentClient, times: Times, number: int, fault: str, parameters: Mapping[str, Any]
) -> InjectionView:
    """Plant and take back once. Raises where the fault did not bite or did not go."""
    start = time.monotonic()
    view = agent.apply(f"bench-{number}-{time.monotonic_ns()}", fault, {**parameters, "seed": number}, LEASE_S)
    times.inject.append(time.monotonic() - start)
    assert view.state == "active" and view.evidence is not None and view.evidence.armed, view
    start = time.monotonic()
    (ended,) = agent.recover((view.id,)).injections
    times.recover.append(time.monotonic() - start)
    assert ended.state == "recovered" and not ended.residue, ended
    return view


def cycles(agent: AgentClient, runs: int, fault: str, parameters: Mapping[str, Any]) -> Times:
    times = Times()
    for number in range(runs):
        cycle(agent, times, number, fault, parameters)
    return times


def under_load(
    node: Node, agent: AgentClient, runs: int, fault: str, parameters: Mapping[str, Any]
) -> tuple[Times, fio.Run]:
    """The cycles while fio works on another file of the disk, and what fio says of it."""
    with fio.load(node, full_load()) as load:
        cycle(agent, Times(), runs, fault, parameters)  # fio is at work when this has ended
        times = cycles(agent, runs, fault, parameters)
    assert load.run is not None
    return times, load.run


@dataclass(frozen=True)
class Reader:
    """What a reader of the spoilt file met: errors inside the bad places, and errors elsewhere."""

    inside: int
    outside: int


def errors_of_a_reader(node: Node, agent: AgentClient, runs: int, seed: int = 1000) -> Reader:
    """Latent sector errors under a file that fio reads all the while: who fails, and where."""
    bad: list[tuple[int, int]] = []
    with fio.load(node, full_load(VICTIM, VICTIM_MIB, "randread")) as load:
        for number in range(runs):
            view = cycle(agent, Times(), seed + number, "latent_sector_error", {"file": VICTIM})
            bad += _places(view.target)
    assert load.run is not None
    inside = [e for e in load.run.errors if any(at < e.at + e.size and e.at < at + size for at, size in bad)]
    return Reader(len(inside), load.run.total_errors - len(inside))


def _places(target: str) -> list[tuple[int, int]]:
    """Offset and length in bytes of the bad place, as the target says it: `PATH at byte N: sector S+COUNT …`."""
    match = re.search(r" at byte (\d+): sector \d+\+(\d+) ", target)
    assert match, target
    return [(int(match[1]), 512 * int(match[2]))]


def phases(
    node: Node, agent: AgentClient, runs: int, fault: str, parameters: Mapping[str, Any]
) -> dict[str, list[dict[str, float]]]:
    """Milliseconds by part of the agent's work, by verb and run, measured in the node under the same load."""
    subprocess.run(ssh_argv(node, "cat > /run/phases.py"), input=PHASES.read_text(), text=True, check=True)
    request = {"node": node.name, "fault": fault, "parameters": dict(parameters), "runs": runs,
               "capabilities": [one.model_dump() for one in agent.probe().capabilities]}  # fmt: skip
    with fio.load(node, full_load()):
        done = subprocess.run(
            ssh_argv(node, shlex.join(("python3", "-I", "/run/phases.py"))), input=json.dumps(request), text=True,
            capture_output=True, timeout=_PHASES_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, float]]] = json.loads(done.stdout)
    return found


def standstills(rows: Sequence[Mapping[str, float]]) -> list[float]:
    """Seconds in which the disk took no I/O, by run: it was suspended, its table changed, and resumed."""
    return [row.get("dm: suspend and resume", 0.0) / 1000 for row in rows]


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each part over the runs, largest first; what a run does not have counts as 0."""
    names = {name for row in rows for name in row}
    middle = {name: sorted(row.get(name, 0.0) for row in rows)[len(rows) // 2] for name in names}
    return {name: round(value, 1) for name, value in sorted(middle.items(), key=lambda item: -item[1])}
