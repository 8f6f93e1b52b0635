"""Whoever ends labctl by a signal: the command ends as with Ctrl-C, and so does what it had started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labctl.interrupt import as_interrupt
from tests.unit.cli_world import World

CHILD = "import os, time; open({file!r}, 'w').write(str(os.getpid())); time.sleep(600)"
PARENT = """
import signal, sys
from labctl.interrupt import as_interrupt
from labctl.lab import tools
with as_interrupt(signal.SIGTERM):
    tools.run([sys.executable, "-c", {child!r}], "sleeping", timeout=600)
"""


def test_a_signal_is_ctrl_c_for_a_while() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), as_interrupt(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_that_is_ended_is_quiet(world: World) -> None:
    def ended(node: str, method: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)

    world.trouble = ended
    done = world.run("node", "facts", "w1")
    assert (done.code, done.out, done.err.strip()) == (130, "", "")


def test_what_it_had_started_ends_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = PARENT.format(child=CHILD.format(file=str(file)))
    with subprocess.Popen((sys.executable, "-c", script), stderr=subprocess.PIPE) as parent:
        waits = threading.Event()
        while not (file.exists() and file.read_text()):
            assert parent.poll() is None
            waits.wait(0.05)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
