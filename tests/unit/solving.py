"""A setting for solvers: nodes that are notes, tools that remember."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.lab.remote import Output
from labctl.run.problem import Problem
from labctl.run.solvers.access import Access
from labctl.run.solvers.base import Setting
from tests.unit.lookouts import PythonBySh


@dataclass
class Nodes(PythonBySh):
    """A lookout that remembers what was run where."""

    nodes: tuple[str, ...] = ("w1", "w2")
    lost: str = ""
    ran: list[tuple[str, str]] = field(default_factory=list)

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        if node == self.lost:
            raise LabError(f"{node} does not answer")
        self.ran.append((node, script))
        return Output(0, "", "")


@dataclass
class Notebook:
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for found, data in self.events if found == kind]


def setting(problem: Problem, tmp_path: Path, nodes: Nodes, notes: Notebook, **tools: Any) -> Setting:
    known = tmp_path / "known_hosts"
    known.write_text("[127.0.0.1]:2201 ssh-ed25519 AAAA\n")
    there = tuple(
        Node(name=name, address="127.0.0.1", ssh_port=2201 + n, known_hosts=known)
        for n, name in enumerate(nodes.nodes)
    )
    hands = {"hardware": lambda text: f"did {text}", **tools}
    return Setting(
        problem, lambda: there, Access(nodes, root=problem.surface == "root"), hands, notes, tmp_path / "log"
    )
