"""Labs that oracles look at in tests: nodes that answer what a test says, or this machine as a node."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from labctl.errors import LabError
from labctl.lab.remote import Output
from labctl.run.oracle import Window

WINDOW = Window(begin_s=40, looked_s=70, end_s=80)

Answer = str | tuple[int, str, str] | Callable[[str], str]


class PythonBySh:
    """Programs run as scripts do: what a test says of scripts holds for them, too."""

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        raise NotImplementedError

    def python(self, node: str, program: str, given: str, *, timeout_s: float = 60.0) -> Output:
        script = f"python3 -ISB - {shlex.quote(given)} <<'END-OF-PROGRAM'\n{program}\nEND-OF-PROGRAM"
        return self.sh(node, script, timeout_s=timeout_s)


@dataclass
class Told(PythonBySh):
    """Nodes that answer by the first of `answers` whose node and part of the script fit; others are lost."""

    answers: Sequence[tuple[str, str, Answer]]
    nodes: tuple[str, ...] = ("w1", "w2", "w3")
    asked: list[tuple[str, str]] = field(default_factory=list)

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        self.asked.append((node, script))
        for where, part, answer in self.answers:
            if where in (node, "*") and part in script:
                said = answer(script) if callable(answer) else answer
                status, out, err = (0, said, "") if isinstance(said, str) else said
                return Output(status, out, err)
        raise LabError(f"{node} does not answer")


class Here(PythonBySh):
    """This machine as every node of a lab. `path`: what comes first where programs are looked for."""

    def __init__(self, *nodes: str, env: Mapping[str, str] | None = None) -> None:
        self.nodes, self.env = nodes or ("here",), env

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=timeout_s, check=False, env=self.env
        )
        return Output(done.returncode, done.stdout, done.stderr)
