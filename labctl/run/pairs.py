"""What the lab could make a problem of, beside what it has: pairs of a fault and a target, by class. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labctl.hardware.catalog import hardware_catalog
from labctl.run.problem import Problem
from node_agent.catalog import catalog

CLASSES: Mapping[str, tuple[str, str]] = {
    "disk_faults": ("disk", "node"),
    "ebpf": ("system calls", "unit"),
    "node_agent.faults.network": ("network", "link"),
    "node_agent.faults.process": ("processes", "unit"),
    "node_agent.faults.memory": ("memory", "node"),
    "node_agent.faults.machine": ("machine", "node"),
    "node_agent.faults.kernel": ("kernel", "node"),
    "labctl.hardware": ("below the system", "node"),
}
"""Where a fault lives: its class, and what it lands on."""


@dataclass(frozen=True)
class Coverage:
    """One class: its faults, the pairs that the lab can make, and those that a problem has."""

    name: str
    lands_on: str
    faults: int
    pairs: int
    faults_used: int
    curated: int


def coverage(
    problems: Iterable[Problem], nodes: Sequence[str], units: Sequence[tuple[str, str]]
) -> list[Coverage]:
    """Each class. A target is a node, a unit on a node, or a link between two nodes, in one direction."""
    used = {(planted.name, _target(planted.fault.model_dump(), planted.node))
            for problem in problems for planted in problem.faults}  # fmt: skip
    links = len(nodes) * (len(nodes) - 1)
    targets = {"node": len(nodes), "unit": len(units), "link": links}
    found = []
    for home, (name, lands_on) in CLASSES.items():
        faults = {fault for fault, where in _homes().items() if where == home}
        mine = {pair for pair in used if pair[0] in faults}
        found.append(
            Coverage(name, lands_on, len(faults), len(faults) * targets[lands_on], len({f for f, _ in mine}),
                     len(mine))
        )  # fmt: skip
    return found


def _target(parameters: Mapping[str, object], node: str) -> str:
    """What a planted fault lands on, as far as two of them can be told apart."""
    named = [f"{key} {parameters[key]}" for key in ("unit", "peers", "file") if parameters.get(key)]
    return " ".join((node, *named))


def _homes() -> dict[str, str]:
    """The class of each fault, by where its module lives."""
    kinds: dict[str, str] = {**{n: c.__module__ for n, c in catalog().items()},
                             **{n: c.__module__ for n, c in hardware_catalog().items()}}  # fmt: skip
    return {
        name: next((home for home in CLASSES if module.startswith(f"{home}.")), "")
        for name, module in kinds.items()
    }
