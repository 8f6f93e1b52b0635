"""Asking several agents at once, and telling apart those that answered from those that could not be reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from labctl.errors import LabctlError, LabError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab.model import Node

T = TypeVar("T")


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

    def start(self) -> None:
        """Ask everybody."""
        for node in self._nodes:
            future: Future[T] = Future()
            self._futures[node.name] = future
            threading.Thread(
                target=_answer, args=(future, self._ask, node), name=f"ask-{node.name}", daemon=True
            ).start()

    def settle(self, timeout_s: float) -> bool:
        """Wait that long for all to answer, without looking at the answers. True when all did."""
        return not wait(self._futures.values(), timeout=timeout_s).not_done

    def answers(self) -> Answers[T]:
        """Wait for all. A :class:`LabctlError` is an answer; anything else is a bug and is raised."""
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
    """One error for all nodes that failed, with the exit code of the first, and what holds now."""
    first = next(iter(answers.bad.values()))
    texts = "; ".join(with_node(name, error) for name, error in answers.bad.items())
    hints = "; ".join(dict.fromkeys(error.hint for error in answers.bad.values() if error.hint))
    return same_kind(first, f"{texts} ({after})", hints)


def same_kind(error: LabctlError, message: str, hint: str) -> LabctlError:
    """Another error with the same exit code."""
    kinds = (UsageError, UnsupportedError, NodeDirtyError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), LabError)
    return kind(message, hint)


def with_node(name: str, error: LabctlError) -> str:
    """The message of an error, beginning with the node it is about."""
    return error.message if error.message.startswith(name) else f"{name}: {error.message}"


def warn_all(errors: Mapping[str, LabctlError], after: str = "") -> None:
    """One line on standard error for each node that did not answer."""
    for name, error in errors.items():
        click.echo(f"warning: {with_node(name, error)}{after}", err=True)


def names_of(nodes: Sequence[Node]) -> str:
    """Node names as a list in a sentence."""
    return ", ".join(node.name for node in nodes)
