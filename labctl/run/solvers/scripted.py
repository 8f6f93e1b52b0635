"""A solver that does what a problem's script says, by the same ways as any other: SSH, hands, submit, declare."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from labctl.run.problem import Problem, Script
from labctl.run.solvers.base import DeskSolver, Setting

STEP_S = 900.0
"""How long one step may take."""

_LOOK_S = 0.1
HARDWARE, WAIT, DESK = "hardware", "wait", "desk"


class ScriptedSolver(DeskSolver):
    """Runs the steps in order, then submits and declares. A step that fails is told, and the next one begins."""

    open_shell = True

    def __init__(self, setting: Setting, script: Script) -> None:
        super().__init__(setting)
        self.script = script
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="script", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STEP_S)

    def _run(self) -> None:
        for number, (where, what) in enumerate(self.script.steps):
            if self._stop.is_set():
                return
            began = time.monotonic()
            self._say(f"--- step {number + 1}, {where}\n")
            status = self._step(where, what)
            took = round(time.monotonic() - began, 1)
            self.setting.note("step", number=number + 1, where=where, status=status, took_s=took)
        if self._stop.is_set():
            return
        if diagnosis := _diagnosis(self.script):
            self._hear("submit", diagnosis)
        if self.script.declares:
            self._hear("declare", "")

    def _step(self, where: str, what: str) -> int:
        if where == WAIT:
            self._stop.wait(float(what))
            return 0
        if where == HARDWARE:
            return self._hear(HARDWARE, what)
        script = ("sh", "-c", what)
        return self._process(script if where == DESK else (*self.directory.ssh, where, shlex.join(script)))

    def _hear(self, kind: str, text: str) -> int:
        answer = self.desk.hear({"kind": kind, "text": text})
        self._say(f"{kind}: {answer['text']}\n")
        return 0 if answer["ok"] else 1

    def _process(self, argv: Sequence[str]) -> int:
        """Run it in the solver's own directory; what it says goes to the log."""
        process = subprocess.Popen(
            argv,
            cwd=self.directory.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        reader = threading.Thread(target=self._copy, args=(process,), daemon=True)
        reader.start()
        deadline = time.monotonic() + STEP_S
        while process.poll() is None:
            if self._stop.wait(_LOOK_S) or time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                self._say("--- ended by the runner\n")
        reader.join(STEP_S)
        return process.wait()

    def _copy(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        while chunk := process.stdout.read1(65536):  # type: ignore[attr-defined]
            self.log.write(chunk)

    def _say(self, text: str) -> None:
        self.log.write(text.encode())


def _diagnosis(script: Script) -> str:
    """What it submits, as JSON; empty for nothing."""
    if script.healthy:
        return '{"healthy": true}'
    if not script.diagnosis:
        return ""
    triples = ",".join(triple.model_dump_json() for triple in script.diagnosis)
    return f'{{"triples": [{triples}]}}'


def submitting(script: Script, problem: Problem) -> Script:
    """The script of a right repair, with the cause as its diagnosis where it names none."""
    if script.healthy or script.diagnosis is not None:
        return script
    if not problem.cause:
        return script.model_copy(update={"healthy": True})
    return script.model_copy(update={"diagnosis": tuple(sorted(problem.cause, key=str))})
