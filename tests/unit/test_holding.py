"""The lock that keeps two installers apart, as a node's own Python holds it: real processes, here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

import pytest

from labctl.errors import UsageError
from labctl.lab import holding
from labctl.lab.holding import held
from labctl.lab.model import Node
from labctl.lab.remote import Output
from labctl.lab.root import Root


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


class Process:
    """A command that goes on."""

    def __init__(self, argv: Sequence[str], first: bytes) -> None:
        self.child: subprocess.Popen[bytes] = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.child.stdin
        self.child.stdin.write(first)

    def line(self, timeout_s: float = 9.0) -> str:
        assert self.child.stdout
        return self.child.stdout.readline().decode().strip()

    def send(self, text: bytes) -> None:
        raise AssertionError("nobody tells it more")

    def end(self) -> None:
        self.child.communicate(timeout=20)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setattr(holding, "PYTHON", sys.executable)
    # A lock of this test's own: several may run at once.
    monkeypatch.setattr(holding, "HOLD", holding.HOLD.replace('"/etc"', repr(str(sys.prefix))))
    node = Here()
    yield node
    for process in node.started:
        process.child.kill()
        process.child.communicate()


def enter(stack: ExitStack, here: Any, who: str) -> None:
    stack.enter_context(held(Root(here), who))


def test_one_at_a_time_and_the_other_is_told_who(here: Here) -> None:
    with ExitStack() as first:
        enter(first, here, "alice@desk")
        with pytest.raises(UsageError, match="w1: alice@desk is installing or removing the agent"):
            enter(first, here, "bob@desk")
    with ExitStack() as second:
        enter(second, here, "bob@desk")


def test_the_lock_ends_with_whoever_held_it(here: Here) -> None:
    with ExitStack() as first:
        enter(first, here, "alice@desk")
        here.started[0].child.kill()  # as the node does when a connection is lost
        here.started[0].child.wait()
        with ExitStack() as second:
            enter(second, here, "bob@desk")


def test_a_node_without_python_is_for_the_next_look_to_tell(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "PYTHON", "/bin/false")
    with ExitStack() as stack:
        enter(stack, here, "alice@desk")
