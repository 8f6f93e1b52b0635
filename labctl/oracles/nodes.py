"""How oracles ask nodes: all at once, bounded, and with a difference between a node that is lost and a bad answer.

A node that does not answer raises (nothing is known of it); what a service on it answers, or that it does not, is
data to be judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any, TypeVar

from labctl.errors import LabError
from labctl.run.oracle import Lookout, Output

T = TypeVar("T")


def on_each(nodes: Sequence[str], do: Callable[[str], T]) -> dict[str, T]:
    """What `do` says of each node, all at once. Raises what it raised, of the first node that did."""
    if not nodes:
        return {}
    with ThreadPoolExecutor(max_workers=len(nodes), thread_name_prefix="look") as pool:
        return dict(zip(nodes, pool.map(do, nodes), strict=True))


def watched(lab: Lookout, without: Sequence[str]) -> tuple[str, ...]:
    """The nodes of a lab, but for those a problem takes away for good."""
    return tuple(node for node in lab.nodes if node not in without)


def run(lab: Lookout, node: str, script: str, *, timeout_s: float = 60.0) -> str:
    """What a script printed. Raises :class:`LabError` where it did not end well: then nothing is known."""
    return _printed(node, lab.sh(node, script, timeout_s=timeout_s))


def _printed(node: str, done: Output) -> str:
    if done.status:
        said = done.stderr.strip().splitlines()
        raise LabError(f"{node}: could not be looked at: {said[-1] if said else f'status {done.status}'}")
    return done.stdout


def program(name: str) -> str:
    """The text of a program of `on_node`."""
    return resources.files("labctl.oracles.on_node").joinpath(f"{name}.py").read_text()


def python(lab: Lookout, node: str, name: str, arguments: Mapping[str, Any], *, timeout_s: float = 60.0) -> Any:
    """What a program of `on_node` says, JSON. It gets its arguments as JSON, too."""
    said = _printed(node, lab.python(node, program(name), json.dumps(arguments), timeout_s=timeout_s))
    try:
        return json.loads(said)
    except json.JSONDecodeError:
        raise LabError(f"{node}: {name} said nonsense: {said[:100]!r}") from None


def sections(text: str) -> dict[str, tuple[str, ...]]:
    """Lines by the heading `## NAME` above them."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            lines = found.setdefault(line[3:], [])
        elif line:
            lines.append(line)
    return {name: tuple(of) for name, of in found.items()}
