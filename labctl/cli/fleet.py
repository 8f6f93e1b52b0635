"""Asking many agents at once, and telling apart those that answered from those that could not be reached.

How long one node may take is bounded by the requests themselves: see :attr:`labctl.cli.session.Session.within_s`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from labctl.errors import LabctlError, LabError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab.model import Node

T = TypeVar("T")

AT_ONCE = 32
"""How many nodes are asked at the same time, those not counted that take longer than :data:`SLOW_S`."""

MOST_AT_ONCE = 256
"""With those. Each costs a thread; a silent node holds its own to the end."""

SLOW_S = 0.25
"""After this long a node's thread gets another one beside it, so that slow nodes do not hold up the others."""

NAMED = 8
"""So many nodes are named in a sentence, the others are counted."""


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What each node answered, by node name, in the order asked."""

    good: Mapping[str, T]
    bad: Mapping[str, LabctlError]


class Round(Generic[T]):
    """One question to several nodes in parallel, put to them by :meth:`start`.

    The threads are daemons: a program that was interrupted leaves without waiting for a dead node.
    """

    def __init__(self, nodes: Sequence[Node], ask: Callable[[Node], T]) -> None:
        self._nodes, self._ask = nodes, ask
        self._futures: dict[str, Future[T]] = {}
        self._waiting: queue.SimpleQueue[tuple[Future[T], Node]] = queue.SimpleQueue()
        self._began: dict[int, float] = {}
        """By the number of a thread that is at work: when it began with its node."""
        self._threads = 0

    def start(self) -> None:
        """Ask everybody."""
        for node in self._nodes:
            self._futures[node.name] = Future()
            self._waiting.put((self._futures[node.name], node))
        self._reinforce(min(AT_ONCE, len(self._nodes)))

    def _reinforce(self, count: int) -> None:
        for _ in range(min(count, MOST_AT_ONCE - self._threads)):
            self._threads += 1
            number = self._threads
            threading.Thread(target=self._work, args=(number,), name=f"ask-{number}", daemon=True).start()

    def _work(self, number: int) -> None:
        while True:
            try:
                future, node = self._waiting.get_nowait()
            except queue.Empty:
                self._began.pop(number, None)
                return
            self._began[number] = time.monotonic()
            if future.set_running_or_notify_cancel():
                _answer(future, self._ask, node)

    def _all_asked(self) -> None:
        """Wait until each node has been asked."""
        while not self._waiting.empty():
            wait(self._futures.values(), timeout=SLOW_S)
            late = time.monotonic() - SLOW_S
            slow = sum(began < late for began in tuple(self._began.values()))
            self._reinforce(AT_ONCE - (len(self._began) - slow))

    def settle(self, timeout_s: float) -> bool:
        """Ask nobody else, and wait that long for those who were asked. True when all of these answered."""
        with contextlib.suppress(queue.Empty):
            while True:
                future, _ = self._waiting.get_nowait()
                future.cancel()
                future.set_running_or_notify_cancel()
        return not wait(self._futures.values(), timeout=timeout_s).not_done

    def answers(self) -> Answers[T]:
        """Wait for all. A :class:`LabctlError` is an answer; anything else is a bug and is raised."""
        self._all_asked()
        good: dict[str, T] = {}
        bad: dict[str, LabctlError] = {}
        for name, future in self._futures.items():
            try:
                good[name] = future.result()
            except LabctlError as error:
                bad[name] = error
        return Answers(good, bad)


def _answer(future: Future[T], ask: Callable[[Node], T], node: Node) -> None:
    try:
        future.set_result(ask(node))
    except BaseException as error:  # noqa: BLE001 - carried to the thread that waits, and raised there
        future.set_exception(error)


def ask_all(nodes: Sequence[Node], ask: Callable[[Node], T]) -> Answers[T]:
    """Ask every node in parallel and wait for all answers."""
    asked = Round(nodes, ask)
    asked.start()
    return asked.answers()


def failure(answers: Answers[Any], after: str) -> LabctlError:
    """One error for all nodes that failed, with the exit code of the first, and what holds now.

    Its text names the first of them and counts the others; :attr:`LabctlError.nodes` has what each said.
    """
    first = next(iter(answers.bad.values()))
    texts = some((with_node(name, error) for name, error in answers.bad.items()), "; ")
    hints = some(dict.fromkeys(error.hint for error in answers.bad.values() if error.hint), "; ")
    error = same_kind(first, f"{texts} ({after})", hints)
    error.nodes = {name: one.message for name, one in answers.bad.items()}
    return error


def same_kind(error: LabctlError, message: str, hint: str) -> LabctlError:
    """Another error with the same exit code."""
    kinds = (UsageError, UnsupportedError, NodeDirtyError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), LabError)
    return kind(message, hint)


def with_node(name: str, error: LabctlError) -> str:
    """The message of an error, beginning with the node it is about."""
    return error.message if error.message.startswith(name) else f"{name}: {error.message}"


def warn_all(errors: Mapping[str, LabctlError], after: str = "") -> None:
    """One line on standard error for each node that did not answer; those after the first few share one."""
    for name, error in list(errors.items())[:NAMED]:
        click.echo(f"warning: {with_node(name, error)}{after}", err=True)
    if rest := list(errors)[NAMED:]:
        click.echo(f"warning: so did {len(rest)} more nodes not answer: {' '.join(rest)}", err=True)


def names_of(nodes: Sequence[Node]) -> str:
    """Node names as a list in a sentence."""
    return some(node.name for node in nodes)


def some(words: Iterable[str], between: str = ", ", most: int = NAMED) -> str:
    """A list in a sentence, never longer than a sentence: "a, b, c and 37 more"."""
    several = list(words)
    more = f" and {len(several) - most} more" if len(several) > most else ""
    return between.join(several[:most]) + more
