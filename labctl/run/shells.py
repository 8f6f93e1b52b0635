"""Looking at nodes over SSH as root: one login a node, kept, and made anew where it broke."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from labctl.errors import LabctlError, LabError
from labctl.lab.model import Node
from labctl.lab.remote import Output, Remote, connected
from labctl.run.interpreter import Ended, Interpreter

AT_ONCE = 8
"""Commands at once on one login: sshd allows ten (MaxSessions)."""

PROBE_S, FRESH_S = 15.0, 5.0
"""A login that was not used for so long is tried first, with so much patience."""

SCRIPT_MOST = 100_000
"""Bytes of a script: the kernel takes 128 KiB in one argument."""


@dataclass
class _Way:
    """The login of one node."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    places: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))
    open: ExitStack = field(default_factory=ExitStack)
    remote: Remote | None = None
    used: float = 0.0
    interpreter: Interpreter | None = None


class Shells:
    """See :class:`labctl.run.oracle.Lookout`. Any thread may ask. `machines` says where the nodes are now."""

    def __init__(
        self,
        machines: Callable[[], Sequence[Node]],
        login: Callable[[Node], AbstractContextManager[Remote]] = connected,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._machines, self._login, self._clock = machines, login, clock
        self.nodes = tuple(node.name for node in machines())
        self._ways = {name: _Way() for name in self.nodes}

    def sh(self, node: str, script: str, *, timeout_s: float = 60.0) -> Output:
        """Run a script on a node as root. Raises :class:`LabError` where it does not answer in time."""
        if len(script.encode()) > SCRIPT_MOST:
            raise ValueError(f"a script of more than {SCRIPT_MOST} bytes")
        way = self._ways[node]
        with way.places:
            return self._by(node, way, lambda remote: remote.run(("sh", "-c", script), timeout_s=timeout_s))

    def python(self, node: str, program: str, given: str, *, timeout_s: float = 60.0) -> Output:
        """Run a Python program on a node as root, beside others in one interpreter that ends soon after the last
        of them. Raises :class:`LabError` where it does not answer in time.
        """
        way = self._ways[node]

        def run(remote: Remote) -> Output:
            try:
                return self._interpreter(way, remote).run(program, given, timeout_s)
            except Ended:  # idle until just now; programs only look, so that none does harm by running twice
                return self._interpreter(way, remote).run(program, given, timeout_s)

        return self._by(node, way, run)

    def _by(self, node: str, way: _Way, do: Callable[[Remote], Output]) -> Output:
        """Do something over the login of a node; one that broke is forgotten."""
        remote = self._remote(node, way)
        try:
            done = do(remote)
        except LabError:
            self._drop(way, remote)
            raise
        way.used = self._clock()
        return done

    def _interpreter(self, way: _Way, remote: Remote) -> Interpreter:
        with way.lock:
            if way.interpreter is None or way.interpreter.ended:
                way.interpreter = Interpreter(remote)
            return way.interpreter

    def answers(self, node: str) -> bool:
        """Whether a node can be logged in to and runs a command."""
        try:
            return self.sh(node, "true", timeout_s=PROBE_S).status == 0
        except LabctlError:
            return False

    def drop(self, node: str) -> None:
        """Forget the login of a node, as after its boot."""
        self._drop(self._ways[node])

    def close(self) -> None:
        """End all logins. Twice is fine; they are made anew where somebody asks."""
        for name in self.nodes:
            self.drop(name)

    def _remote(self, node: str, way: _Way) -> Remote:
        with way.lock:
            if way.remote is not None and self._clock() - way.used > FRESH_S and not _lives(way.remote):
                self._forget(way)
            if way.remote is None:
                there = next(one for one in self._machines() if one.name == node)
                way.remote = way.open.enter_context(self._login(there))
            way.used = self._clock()
            return way.remote

    def _drop(self, way: _Way, mine: Remote | None = None) -> None:
        """Forget a login, but not one that somebody else has made meanwhile."""
        with way.lock:
            if mine is None or way.remote is mine:
                self._forget(way)

    @staticmethod
    def _forget(way: _Way) -> None:
        way.remote, way.interpreter, open_ = None, None, way.open
        way.open = ExitStack()
        with _whatever():
            open_.close()


def _lives(remote: Remote) -> bool:
    try:
        return remote.run(("true",), timeout_s=PROBE_S).status == 0
    except LabError:
        return False


@contextlib.contextmanager
def _whatever() -> Iterator[None]:
    """A connection to a machine that has gone may not even close well."""
    with contextlib.suppress(OSError, EOFError, LabctlError):
        yield
