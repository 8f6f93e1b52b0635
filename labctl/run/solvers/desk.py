"""What a solver can say to the runner: a diagnosis, that the repair is complete, what hands shall do to hardware.

It says so over a unix socket in its directory, one JSON object a connection. Whatever it sends is bounded, and no
answer tells more than whether it was understood.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labctl.errors import LabctlError
from labctl.run.diagnosis import Diagnosis, DiagnosisError, Vocabulary, parse_diagnosis

MOST_SUBMISSIONS = 20
MOST_REQUESTS = 2000
LONGEST_REQUEST = 64 * 1024
AT_ONCE = 8
_PATIENCE_S = 10.0

Said = Mapping[str, Any]
Tool = Callable[[str], str]
"""An action in words; what it did, in words. Raises :class:`LabctlError` for one that is unknown or failed."""


class Desk:
    """Takes what a solver says. `note` writes it down; `tools` are its means beside SSH, such as `hardware`."""

    def __init__(self, vocabulary: Vocabulary, tools: Mapping[str, Tool], note: Callable[..., None]) -> None:
        self._vocabulary, self._tools, self._note = vocabulary, tools, note
        self._lock = threading.Lock()
        self._hands = threading.Lock()
        self._submissions = self._requests = 0
        self._diagnosis: Diagnosis | None = None
        self._declared = self._closed = False

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The last one that was submitted."""
        with self._lock:
            return self._diagnosis

    @property
    def declared(self) -> bool:
        """Whether the repair was declared complete."""
        with self._lock:
            return self._declared

    def close(self) -> None:
        """From now on nothing is taken. Returns when no tool is at work any more."""
        with self._lock:
            self._closed = True
        with self._hands:
            pass

    def hear(self, said: Said) -> dict[str, object]:
        """Answer one request: `ok`, and `text` for people."""
        kind, text = said.get("kind"), said.get("text", "")
        if not isinstance(kind, str) or not isinstance(text, str):
            return _no("say it as submit, declare and the other commands do")
        with self._lock:
            self._requests += 1
            if self._closed or self._declared:
                return _no("it is over: nothing is taken any more")
            if self._requests > MOST_REQUESTS:
                return _no(f"more than {MOST_REQUESTS} requests: nothing is taken any more, but for declare") \
                    if kind != "declare" else self._declare()  # fmt: skip
            if kind == "submit":
                return self._submit(text)
            if kind == "declare":
                return self._declare()
        return self._use(kind, text)

    def _submit(self, text: str) -> dict[str, object]:
        if self._submissions >= MOST_SUBMISSIONS:
            return _no(f"{MOST_SUBMISSIONS} diagnoses were submitted; the last one counts")
        try:
            found = parse_diagnosis(text, self._vocabulary)
        except DiagnosisError as error:
            return _no(str(error))
        self._submissions += 1
        self._diagnosis = found
        self._note("submitted", number=self._submissions, diagnosis=found.model_dump(mode="json"))
        left = MOST_SUBMISSIONS - self._submissions
        return {"ok": True, "text": f"submitted; you may do so {left} times more, and the last one counts"}

    def _declare(self) -> dict[str, object]:
        self._declared = True
        self._note("declared")
        return {"ok": True, "text": "declared; your sessions end now"}

    def _use(self, kind: str, text: str) -> dict[str, object]:
        if kind not in self._tools:
            return _no(f"there is no {kind}")
        with self._hands:
            if self._closed:
                return _no("it is over: nothing is taken any more")
            self._note("asked", tool=kind, text=text[:1000])
            try:
                answer = self._tools[kind](text)
            except LabctlError as error:
                return _no(f"{error.message}{f' ({error.hint})' if error.hint else ''}")
        return {"ok": True, "text": answer}


def _no(text: str) -> dict[str, object]:
    return {"ok": False, "text": text}


class _Handler(socketserver.StreamRequestHandler):
    server: Counter
    timeout = _PATIENCE_S

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone
            line = self.rfile.readline(LONGEST_REQUEST + 1)
            self.wfile.write(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, object]:
        if len(line) > LONGEST_REQUEST:
            return _no(f"more than {LONGEST_REQUEST} bytes")
        try:
            said = json.loads(line)
        except ValueError:
            return _no("not JSON")
        return self.server.desk.hear(said) if isinstance(said, dict) else _no("no JSON object")


class Counter(socketserver.ThreadingUnixStreamServer):
    """The socket a desk is reached by. So many are served at once; others wait."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, path: Path, desk: Desk) -> None:
        self.desk = desk
        self._places = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(str(path), _Handler)
        path.chmod(0o666)  # the directory above says who may
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="desk", daemon=True)
        self._thread.start()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        self._places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def end(self) -> None:
        """Stop listening. Whoever is being served is answered."""
        self.shutdown()
        self.server_close()
        self._thread.join()
