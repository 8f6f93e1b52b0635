"""Labs as oracles see them that are not quite as they are: one without a node, one that is asked once."""

from __future__ import annotations

from collections.abc import Callable

from labctl.errors import LabError
from labctl.run.oracle import Lookout, Output


class LostNode:
    """A lab, one node of which does not answer."""

    def __init__(self, lab: Lookout, node: str) -> None:
        self._lab, self._node = lab, node
        self.nodes = lab.nodes

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        self._lose(node)
        return self._lab.sh(node, script, timeout_s=timeout_s)

    def python(self, node: str, program: str, given: str, *, timeout_s: float = 60.0) -> Output:
        self._lose(node)
        return self._lab.python(node, program, given, timeout_s=timeout_s)

    def _lose(self, node: str) -> None:
        if node == self._node:
            raise LabError(f"{node} does not answer")


class Remembered:
    """A lab that is asked everything once: to the same words a node answers as it did before."""

    def __init__(self, lab: Lookout) -> None:
        self._lab = lab
        self.nodes = lab.nodes
        self._known: dict[tuple[str, ...], Output] = {}

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        return self._once((node, script), lambda: self._lab.sh(node, script, timeout_s=timeout_s))

    def python(self, node: str, program: str, given: str, *, timeout_s: float = 60.0) -> Output:
        asked = (node, program, given)
        return self._once(asked, lambda: self._lab.python(node, program, given, timeout_s=timeout_s))

    def _once(self, asked: tuple[str, ...], ask: Callable[[], Output]) -> Output:
        if asked not in self._known:
            self._known[asked] = ask()
        return self._known[asked]
