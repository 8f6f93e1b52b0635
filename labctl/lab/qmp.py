"""A small synchronous client of QEMU's machine protocol (QMP).

Our own and not the package `qemu.qmp`: that one is asyncio, its synchronous wrapper is marked legacy and is
GPL-2.0-only where this project is Apache-2.0, and all that a lab needs is one request and one answer at a time,
and now and then an event.
Protocol: QEMU's "QEMU Machine Protocol Specification" (docs/interop/qmp-spec).
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from labctl.errors import LabError


class QmpError(LabError):
    """QEMU refused a command, or does not answer."""


class Qmp:
    """A connection to one QEMU. Use as a context manager; each method is bounded by `timeout` seconds."""

    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        self._path, self._timeout = path, timeout
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(str(path))
            self._read(time.monotonic() + timeout)
            self.execute("qmp_capabilities")
        except OSError as error:
            self.close()
            raise QmpError(f"QEMU does not answer on {path.name}: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; QEMU goes on."""
        self._socket.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run a command and return its answer. Underscores in argument names stand for hyphens."""
        return self.send(command, {name.replace("_", "-"): value for name, value in arguments.items()})

    def send(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Run a command whose arguments are named as they stand; a few old ones do have underscores."""
        deadline = time.monotonic() + self._timeout
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            while True:
                message = self._read(deadline)
                if "event" in message:
                    self.events.append(message)
                elif "error" in message:
                    raise QmpError(f"{command}: {message['error'].get('desc', 'refused')}")
                elif "return" in message:
                    return message["return"]
        except OSError as error:
            raise QmpError(f"{command}: QEMU hung up or does not answer: {error or 'time out'}") from error

    def wait_event(self, name: str, timeout: float, **data: Any) -> bool:
        """Wait until QEMU has told of an event whose data has these values, also before this call.

        False where it did not come within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not any(e["event"] == name and data.items() <= e.get("data", {}).items() for e in self.events):
            try:
                message = self._read(deadline)
            except TimeoutError:
                return False
            except OSError as error:
                raise QmpError(f"waiting for {name}: QEMU hung up: {error}") from error
            if "event" in message:
                self.events.append(message)
        return True

    def monitor(self, line: str) -> str:
        """Run a command of the human monitor, for the few that QMP lacks, and return what it prints."""
        return str(self.execute("human-monitor-command", command_line=line))

    def job(self, command: str, timeout: float, **arguments: Any) -> None:
        """Run a command that starts a job, wait for the job's end, and raise QmpError where it failed."""
        name = f"gf-{command}-{time.monotonic_ns()}"
        self.execute(command, job_id=name, **arguments)
        deadline = time.monotonic() + timeout
        while True:
            job = next((j for j in self.execute("query-jobs") if j["id"] == name), None)
            if job is None:
                raise QmpError(f"{command}: QEMU lost the job")
            if job["status"] == "concluded":
                self.execute("job-dismiss", id=name)
                if job.get("error"):
                    raise QmpError(f"{command}: {job['error']}")
                return
            if time.monotonic() > deadline:
                raise QmpError(f"{command}: not done after {timeout:.0f} s")
            time.sleep(0.02)

    def quit(self) -> None:
        """Ask QEMU to end at once, as by pulling the plug. It may hang up before it answers."""
        with contextlib.suppress(QmpError):
            self.execute("quit")

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionResetError("connection closed")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message
