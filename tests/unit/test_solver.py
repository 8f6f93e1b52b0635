"""Solvers: a command with everything it starts, a script of the problem, nobody."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from labctl.errors import UsageError
from labctl.run.problem import Script
from labctl.run.solvers import command
from labctl.run.solvers.access import CLOSE
from labctl.run.solvers.base import Log
from labctl.run.solvers.command import CommandSolver, environment, marked
from labctl.run.solvers.manual import ManualSolver
from labctl.run.solvers.none import NoSolver
from labctl.run.solvers.scripted import ScriptedSolver, submitting
from tests.user import until

from .run_world import BAD, problem
from .solving import Nodes, Notebook, setting


def solver_of(text: str, tmp_path: Path, nodes: Nodes, notes: Notebook) -> CommandSolver:
    return CommandSolver(setting(problem(), tmp_path, nodes, notes), (sys.executable, "-c", text))


def test_a_command_solves_and_declares(tmp_path: Path) -> None:
    nodes, notes = Nodes(), Notebook()
    text = f"""
import json, subprocess, os
print("I am in", os.listdir("."))
given = json.dumps({{"triples": [{BAD.model_dump()!r}]}})
subprocess.run(["./submit"], input=given, text=True, check=True)
subprocess.run(["./hardware", "replace-disk", "w2"], check=True)
subprocess.run(["./declare"], check=True)
"""
    mine = solver_of(text, tmp_path, nodes, notes)
    mine.start()
    path = mine.directory.path
    until("it declares", mine.declared)
    until("it ends", mine.ended)
    mine.end()
    mine.end()
    assert mine.diagnosis() is not None and not path.exists()
    assert [kind for kind, _ in notes.events] == ["submitted", "asked", "declared", "solver"]
    log = (tmp_path / "log").read_text()
    assert "STATEMENT.md" in log and "did replace-disk w2" in log
    assert [script for _, script in nodes.ran].count(CLOSE) == 2


def test_a_command_that_exits_at_once(tmp_path: Path) -> None:
    mine = solver_of("raise SystemExit(3)", tmp_path, Nodes(), notes := Notebook())
    mine.start()
    until("it ends", mine.ended)
    mine.end()
    assert not mine.declared() and mine.diagnosis() is None and notes.of("solver") == [{"status": 3}]


def test_nothing_it_started_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what ignores being asked, nor what left the process group and the session."""
    monkeypatch.setattr(command, "GRACE_S", 0.5)
    text = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal,time; signal.signal(15, 1); time.sleep(600)"],
                 start_new_session=True)
subprocess.Popen(["sleep", "600"], start_new_session=True)
time.sleep(600)
"""
    mine = solver_of(text, tmp_path, Nodes(), Notebook())
    mine.start()
    mark = mine.directory.path.name
    until("all three run", lambda: len(marked(mark)) == 3)
    pids = [one.pid for one in marked(mark)]
    mine.end()
    assert marked(mark) == []
    assert all(not psutil.pid_exists(p) or psutil.Process(p).status() == "zombie" for p in pids)


def test_a_solver_gets_nothing_that_leads_to_labs() -> None:
    mine = {"PATH": "/bin", "GROUNDFAULT_LAB": "x", "XDG_STATE_HOME": "/x", "KEY_OF_A_MODEL": "secret"}
    assert environment(mine, "m") == {"PATH": "/bin", "KEY_OF_A_MODEL": "secret", "LAB_SOLVER": "m"}


def test_a_command_that_is_none(tmp_path: Path) -> None:
    mine = CommandSolver(setting(problem(), tmp_path, Nodes(), Notebook()), ("/no/such",))
    with pytest.raises(UsageError, match="/no/such cannot be run"):
        mine.start()
    mine.end()


def test_output_is_bounded_and_a_full_disk_no_end(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", most=10)
    for _ in range(4):
        log.write(b"1234")
    log.close()
    log.close()
    assert (tmp_path / "log").read_bytes() == b"1234123412"
    full = Log(Path("/dev/full"))
    full.write(b"x")
    full.close()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh that runs here what it is told to run there."""
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "on $3"\neval "$4"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("ssh")
def test_a_script(tmp_path: Path) -> None:
    notes = Notebook()
    steps = (("w1", "echo hello; exit 3"), ("hardware", "status w2"), ("wait", "0.1"), ("w2", "echo 'it''s me'"),
             ("desk", "ls STATEMENT.md; exit 4"))  # fmt: skip
    script = submitting(Script(title="x", steps=steps), problem())
    mine = ScriptedSolver(setting(problem(surface="confined"), tmp_path, Nodes(), notes), script)
    mine.start()
    until("it ends", mine.ended)
    mine.end()
    assert mine.declared() and mine.diagnosis() is not None
    assert [data["status"] for data in notes.of("step")] == [3, 0, 0, 0, 4]
    log = (tmp_path / "log").read_text()
    assert "on w1\nhello\n" in log and "hardware: did status w2" in log and "on w2\nits me\n" in log
    assert "step 5, desk\nSTATEMENT.md\n" in log


@pytest.mark.usefixtures("ssh")
def test_a_script_is_ended_in_the_middle(tmp_path: Path) -> None:
    script = Script(title="x", steps=(("w1", "echo begun; sleep 600"), ("w1", "echo never")))
    mine = ScriptedSolver(setting(problem(), tmp_path, Nodes(), Notebook()), script)
    mine.start()
    until("it has begun", lambda: "begun" in (tmp_path / "log").read_text())
    began = time.monotonic()
    mine.end()
    assert time.monotonic() - began < 30 and mine.ended() and not mine.declared()
    assert "never" not in (tmp_path / "log").read_text()


def test_what_scripts_submit() -> None:
    assert submitting(Script(title="x"), problem()).diagnosis == (BAD,)
    assert submitting(Script(title="x", diagnosis=()), problem()).diagnosis == ()
    calm = problem(mode="no_fault", faults=(), cause=frozenset())
    assert submitting(Script(title="x"), calm).healthy


def test_nobody() -> None:
    nobody = NoSolver()
    nobody.start()
    assert nobody.ended() and not nobody.declared() and nobody.diagnosis() is None
    nobody.end()


def test_a_person_needs_a_terminal(tmp_path: Path) -> None:
    mine = ManualSolver(setting(problem(), tmp_path, Nodes(), Notebook()))
    with pytest.raises(UsageError, match="there is no terminal"):
        mine.start()
    mine.end()
