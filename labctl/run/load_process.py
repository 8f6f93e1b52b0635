"""The load as a process of its own: what it costs and what befalls it is apart from the runner.

The process sends each line of the ledger through a pipe when its request has ended. The runner keeps the lines and
writes them to a file of the record; a file that is not what was written is an edited ledger, a process that
somebody ended is no outage of the service. It ends when its standard input does, so also with its runner.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from labctl.errors import LabError
from labctl.run.judging import Tampering
from labctl.run.ledger import Line
from labctl.run.load import HttpLoad, LoadPlan

START_S, STOP_S = 60.0, 30.0
_POLL_S = 0.1
_SLACK_S = 1.0


class LoadProcess:
    """See :class:`labctl.run.episode.Load`. `plan` is a function that gives the plan, as "module:name", called
    with what `url` says at the start and `seed`. `ledger` is the file that the lines are written to as they come.
    """

    def __init__(self, plan: str, url: Callable[[], str], seed: int, ledger: Path, timeout_s: float = 5.0) -> None:
        self._plan, self._url, self._seed = plan, url, seed
        self._path, self.patience_s = ledger, timeout_s + _SLACK_S
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._written = hashlib.sha256()
        self._began: float | None = None
        self._crash = ""
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Of the process; 0 before it was started."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start it, and wait until it has begun."""
        self._path.touch(mode=0o600)
        argv = (sys.executable, "-m", "labctl.run.load_process")
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin
        spec = {"plan": self._plan, "url": self._url(), "seed": self._seed}
        self._process.stdin.write(json.dumps(spec).encode() + b"\n")
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read, name="ledger", daemon=True)
        self._reader.start()
        deadline = time.monotonic() + START_S
        while self._began is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise LabError(f"the load generator did not start: {self._crash or 'no word of it'}")
            time.sleep(_POLL_S)

    def now_s(self) -> float:
        """Seconds since its start: one clock for all processes of this machine."""
        return time.monotonic() - self._began if self._began is not None else 0.0

    def lines(self) -> Sequence[Line]:
        """The ledger so far. Raises :class:`LabError` where the generator is broken."""
        with self._lock:
            if self._crash:
                raise LabError(f"the load generator is broken: {self._crash}")
            return tuple(self._lines)

    def tampering(self) -> tuple[Tampering, ...]:
        """Whether somebody ended the process, or edited the file."""
        found = []
        if self._killed:
            found.append(Tampering(aspect="scope", reason=f"the load was ended by {self._killed}"))
        with self._lock:
            if self._process is not None and self._sum() != self._written.hexdigest():
                found.append(Tampering(aspect="integrity", reason="the ledger was edited"))
        return tuple(found)

    def stop(self) -> None:
        """No more sessions; wait until the last request has ended. Twice is fine."""
        process = self._process
        if process is None or self._stopped:
            return
        self._stopped = process.poll() is None
        with contextlib.suppress(OSError):  # it has gone
            assert process.stdin
            process.stdin.close()
        try:
            process.wait(self.patience_s + STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader:
            self._reader.join(STOP_S)

    @property
    def _killed(self) -> str:
        """The signal that ended it, where that was not us."""
        status = self._process.poll() if self._process else None
        return signal.Signals(-status).name if status is not None and status < 0 and not self._stopped else ""

    def _sum(self) -> str:
        try:
            return hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError:
            return "gone"

    def _read(self) -> None:
        """In a thread: lines as they come, until the process ends."""
        process = self._process
        assert process and process.stdout and process.stderr
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            self._crash = f"its ledger cannot be written: {error.strerror}"
            return
        try:
            for text in process.stdout:
                self._take(file, text)
        finally:
            os.close(file)
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        process.wait()
        if not self._stopped and not self._killed:
            self._crash = self._crash or (said[-1] if said else f"it ended with {process.returncode}")

    def _take(self, file: int, text: bytes) -> None:
        data = json.loads(text)
        if "began" in data:
            self._began = data["began"]
            return
        if "crash" in data:
            self._crash = data["crash"]
            return
        line = Line.model_validate(data)
        content = line.model_dump_json().encode() + b"\n"
        with self._lock:
            self._lines.append(line)
            self._written.update(content)
            try:
                os.write(file, content)
            except OSError as error:
                self._crash = f"its ledger cannot be written: {error.strerror}"


# -- the process --------------------------------------------------------------------------------------------------


def serve(given: IO[bytes], out: IO[bytes]) -> None:
    """Run the load that the first line asks for until the input ends."""
    spec: Mapping[str, Any] = json.loads(given.readline())
    module, _, name = str(spec["plan"]).partition(":")
    make: Callable[[str, int], LoadPlan] = getattr(importlib.import_module(module), name)
    load = HttpLoad(make(spec["url"], spec["seed"]))
    load.start()
    _say(out, {"began": time.monotonic() - load.now_s()})
    sent = 0
    with selectors.DefaultSelector() as waiting:
        waiting.register(given, selectors.EVENT_READ)
        over = False
        while not over:
            over = bool(waiting.select(_POLL_S))
            if over:
                load.stop()
            try:
                lines = load.lines()
            except LabError as error:
                _say(out, {"crash": error.message})
                return
            for line in lines[sent:]:
                _say(out, line.model_dump(mode="json"))
            sent = len(lines)


def _say(out: IO[bytes], data: Mapping[str, Any]) -> None:
    out.write(json.dumps(data).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
