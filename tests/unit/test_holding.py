"""The lock that keeps two installers apart, as a node's own Python holds it: real processes, here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from labctl.errors import UsageError
from labctl.lab import holding
from labctl.lab.holding import held
from labctl.lab.root import Root
from tests.unit.running import Here


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setattr(holding, "PYTHON", sys.executable)
    # A lock of this test's own: several may run at once.
    monkeypatch.setattr(holding, "HOLD", holding.HOLD.replace('"/etc"', repr(str(sys.prefix))))
    node = Here()
    yield node
    for process in node.started:
        process.child.kill()
        process.child.wait()


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
