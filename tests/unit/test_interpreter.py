"""The interpreter that runs the programs of a look: on this machine, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from labctl.errors import LabError
from labctl.lab.model import Node
from labctl.lab.remote import Output, Remote
from labctl.run import interpreter
from labctl.run.interpreter import Ended, Interpreter
from labctl.run.shells import Shells
from tests.unit.running import Here

SAYS = "import sys; print(sys.argv[1])"


def lives(pid: str) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True)
    return done.returncode == 0 and not done.stdout.startswith("Z")


@pytest.fixture
def here() -> Iterator[Here]:
    node = Here()
    yield node
    for one in node.started:
        if one.child.poll() is None:
            one.end()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (SAYS, Output(0, "given \u00fc\n", "")),
        ("raise SystemExit(3)", Output(3, "", "")),
        ("import sys; sys.exit('why')", Output(1, "", "")),
        ("import os; os.write(2, b'\\xff'); os._exit(0)", Output(0, "", "\ufffd")),
        ("import os; os.kill(os.getpid(), 9)", Output(-9, "", "")),
        ("import sys; print(len(sys.stdin.read()))", Output(0, "0\n", "")),
        ("print('x' * 3000000)", Output(0, "x" * 3000000 + "\n", "")),
    ],
)
def test_a_program_runs_to_its_end(here: Here, program: str, said: Output) -> None:
    one = Interpreter(here)
    assert one.run(program, "given \u00fc", 20) == said
    assert one.run(SAYS, "again", 20).stdout == "again\n"


def test_a_program_that_crashes_says_why(here: Here) -> None:
    done = Interpreter(here).run("1 / 0", "", 20)
    assert done.status == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_what_a_program_left_running_does_not_hold_its_answer(here: Here) -> None:
    began = time.monotonic()
    said = Interpreter(here).run("import subprocess; print(subprocess.Popen(['sleep', '30']).pid)", "", 20).stdout
    assert time.monotonic() - began < 10
    os.kill(int(said), 9)


def test_many_at_once_from_many_threads(here: Here) -> None:
    one, together = Interpreter(here), threading.Barrier(8)

    def ask(number: int) -> str:
        together.wait()
        program = "import sys, time; time.sleep(0.5); print(sys.argv[1])"
        return one.run(program, str(number), 20).stdout.strip()

    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(ask, range(8))] == [str(n) for n in range(8)]
    assert time.monotonic() - began < 0.5 * 8, "they run side by side"
    assert len(here.started) == 1


def test_one_that_does_not_end_is_late_and_ends_with_the_login(here: Here) -> None:
    one = Interpreter(here)
    pid = one.run("import os; print(os.getppid())", "", 20).stdout.strip()
    with pytest.raises(LabError, match=r"did not end within 0\.5 s"):
        one.run("import time; time.sleep(60)", "", 0.5)
    (child,) = subprocess.run(["pgrep", "-P", pid], capture_output=True, text=True, check=True).stdout.split()
    here.started[0].end()
    deadline = time.monotonic() + 10
    while lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_ends_when_idle_and_those_who_wait_are_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "IDLE_S", 0.3)
    one = Interpreter(here)
    assert one.run("import time; time.sleep(1); print(1)", "", 20).stdout == "1\n", "busy is not idle"
    here.started[0].child.wait(20)
    deadline = time.monotonic() + 10
    while not one.ended and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(Ended, match="w1: its interpreter ended"):
        one.run(SAYS, "", 20)


def test_one_whose_end_was_not_read_yet_is_over(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Interpreter(here)
    with monkeypatch.context() as patch:
        patch.setattr(here.started[0], "send", lost)
        with pytest.raises(Ended, match="the SSH connection broke"):
            one.run(SAYS, "", 20)
    assert one.ended


def lost(text: bytes) -> None:
    raise LabError("w1: the SSH connection broke")


def test_one_that_is_killed_leaves_nobody_waiting(here: Here) -> None:
    one = Interpreter(here)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(one.run, "import os, signal; os.kill(os.getppid(), 9)", "", 20)
        with pytest.raises(Ended):
            waits.result(20)


def test_shells_start_another_one_where_it_was_idle(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "IDLE_S", 0.2)

    @contextmanager
    def login(node: Node) -> Iterator[Remote]:
        yield here

    shells = Shells(lambda: [here.node], login)
    for number in range(8):
        assert shells.python("w1", SAYS, str(number)).stdout == f"{number}\n"
        time.sleep(0.06 * number)  # around the moment at which it ends
    assert len(here.started) > 1
    with pytest.raises(LabError, match="did not end within"):
        shells.python("w1", "import time; time.sleep(60)", "", timeout_s=0.5)
    assert shells.python("w1", SAYS, "on").stdout == "on\n"
