"""One interpreter on a node that runs the programs of a look, so that each need not start its own."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from importlib import resources

from labctl.errors import LabError
from labctl.lab.remote import Output, Remote, Running

IDLE_S = 3.0
"""An interpreter that nobody asks anything ends after so long: nothing of a look stays while somebody repairs."""

_LONG_S = 7200.0


class Ended(LabError):
    """The interpreter is no more: it was idle, or its node or the login is lost."""


class Interpreter:
    """Runs on a node from now on, until it is idle or its login breaks. Any thread may ask it."""

    def __init__(self, remote: Remote) -> None:
        program = resources.files("labctl.oracles.on_node").joinpath("interpreter.py").read_text()
        self._name = remote.node.name
        self._running: Running = remote.start(("python3", "-ISBc", program, str(IDLE_S)))
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Output]] = {}
        self._count = 0
        self._ended = ""
        threading.Thread(target=self._read, name=f"answers of {self._name}", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether it answers nothing any more."""
        return bool(self._ended)

    def run(self, program: str, given: str, timeout_s: float) -> Output:
        """Run a program to its end, `given` as its argument.

        Raises :class:`Ended` where the interpreter is no more, :class:`LabError` where it does not answer in time.
        """
        answer: Future[Output] = Future()
        with self._lock:
            if self._ended:
                raise Ended(self._ended)
            self._count += 1
            number = self._count
            self._asked[number] = answer
            ask = json.dumps({"number": number, "program": program, "given": given})
            try:
                self._running.send(ask.encode() + b"\n")
            except LabError as error:  # it ended just now, and its end was not read yet
                self._ended = error.message
                raise Ended(self._ended) from None
        try:
            return answer.result(timeout_s)
        except Late:
            raise LabError(f"{self._name}: a program did not end within {timeout_s:g} s") from None

    def _read(self) -> None:
        """Hand over each answer; in the end, tell all who wait that there will be none."""
        why = f"{self._name}: its interpreter ended"
        try:
            while line := self._running.line(_LONG_S):
                said = json.loads(line)
                with self._lock:
                    answer = self._asked.pop(said.pop("number"))
                answer.set_result(Output(**said))
        except LabError as error:
            why = error.message
        except (ValueError, KeyError, TypeError) as error:
            why = f"{self._name}: its interpreter said nonsense: {error}"
        with self._lock:
            self._ended = why
            asked = [*self._asked.values()]
        for answer in asked:
            answer.set_exception(Ended(why))
        self._running.end()
