"""This machine as a node that commands are started on: each is a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import IO

from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.lab.remote import Output


class Process:
    """A command that goes on; see :class:`labctl.lab.remote.Running`."""

    def __init__(self, argv: Sequence[str], first: bytes = b"") -> None:
        self.child: subprocess.Popen[bytes] = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.send(first)

    def line(self, timeout_s: float = 9.0) -> str:
        assert self.child.stdout
        return self.child.stdout.readline().decode().strip()

    def send(self, text: bytes) -> None:
        assert self.child.stdin
        try:
            self.child.stdin.write(text)
            self.child.stdin.flush()
        except BrokenPipeError:
            raise LabError("w1: the SSH connection broke") from None

    def end(self) -> None:
        assert self.child.stdin
        self.child.stdin.close()
        self.child.wait(20)


class Here:
    """This machine as a node, on which everybody is root."""

    def __init__(self) -> None:
        self.node = Node(name="w1", address="h")
        self.started: list[Process] = []

    def run(self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = 9.0) -> Output:
        return Output(0, "0", "")

    def start(self, argv: Sequence[str], first: bytes = b"") -> Process:
        self.started.append(Process(argv, first))
        return self.started[-1]
