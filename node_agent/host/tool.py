"""Programs that may hang on a dead disk, run so that they never hang the agent."""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass

from node_agent.host import CommandError
from node_agent.host.notify import busy_for

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_GRACE_S, _BEAT_S = 1.0, 20.0


@dataclass(frozen=True)
class Ended:
    """How a program ended. `status` None: not in time; then it was killed, or is left to the kernel."""

    argv: tuple[str, ...]
    status: int | None
    text: str

    def checked(self) -> Ended:
        """Itself where the status is 0. Raises :class:`CommandError`."""
        if self.status != 0:
            raise CommandError(self.argv, self.status, " / ".join(self.text.split("\n")[-6:]))
        return self


def run_tool(argv: tuple[str, ...], timeout_s: float) -> Ended:
    """Run a program with its output, errors included, in one text.

    A program that waits for a disk cannot be killed before the disk answers: nobody waits for it then. Its output
    goes to a file, because a pipe would be held open. A check of a large disk may take longer than systemd's
    watchdog waits, so systemd is told meanwhile.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT
        )
        status = _end_of(child, timeout_s)
        if status is None:
            child.kill()
            with suppress(subprocess.TimeoutExpired):  # in a wait that cannot be interrupted: it ends with that
                child.wait(_GRACE_S)
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    return Ended(argv, status, text)


def _end_of(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit status of a child; None where it has not ended in time."""
    end = time.monotonic() + timeout_s
    while (rest := end - time.monotonic()) > 0:
        try:
            return child.wait(min(rest, _BEAT_S))
        except subprocess.TimeoutExpired:
            busy_for(2 * _BEAT_S)
    return None
