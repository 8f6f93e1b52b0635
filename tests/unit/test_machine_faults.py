"""Faults that end or hang a machine: what they say beforehand, and the programs that do it, harmless ones here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node_agent.errors import Refusal
from node_agent.faults.machine import kernel_hang, own_machine
from node_agent.injector import Injector
from node_agent.probe import Lacking
from node_agent.steps.helper_process import HelperProcess
from tests.contract.simulated import SimulatedHost, fresh_kernel

ROOT = Path(__file__).resolve().parents[2]
PATCHED = """
import os, sys
from node_agent.stressors import end_machine, hang_machine
end_machine._TRIGGER = sys.argv[2]
os.posix_spawnp = lambda name, argv, env: open(sys.argv[2], "w").write(" ".join(argv))
os.sched_setscheduler = lambda *_: None
sys.exit({"end": end_machine, "hang": hang_machine}[sys.argv[1]].main())
"""
BOTH = {"accept_reboot": True, "accept_data_loss": True}


class Program:
    """One of the programs, with what it would do replaced by writing a file."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, line: str) -> dict[str, int]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline())["counters"])


@contextmanager
def program(which: str, trigger: Path, **payload: Any) -> Iterator[Program]:
    trigger.touch()
    argv = (sys.executable, "-c", PATCHED, which, str(trigger))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(payload) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        yield Program(process)
        process.stdin.close()
        assert process.wait(20) == 0


def wait_for(trigger: Path) -> str:
    deadline = time.monotonic() + 20
    while not trigger.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return trigger.read_text()


@pytest.mark.parametrize(("how", "does"), [("panic", "c"), ("reset", "b"), ("reboot", "systemctl reboot")])
def test_it_happens_a_while_after_it_was_told(tmp_path: Path, how: str, does: str) -> None:
    trigger = tmp_path / "trigger"
    with program("end", trigger, how=how, after_s=0.5) as one:
        assert one.ask("report") == {"left_ms": -1, "hits": 0}, "not before it is told"
        assert 0 < one.ask("go")["left_ms"] <= 500 and trigger.read_text() == ""
        one.ask("go")
        assert wait_for(trigger) == does
        assert one.ask("report") == {"left_ms": 0, "hits": 1}


def test_it_is_called_off_by_the_end_of_whoever_told_it(tmp_path: Path) -> None:
    trigger = tmp_path / "trigger"
    with program("end", trigger, how="panic", after_s=0.2) as one:
        one.ask("go")
    assert trigger.read_text() == ""


def test_a_hang_begins_and_ends_by_itself(tmp_path: Path) -> None:
    """Without the priority nobody is kept from running: so it does not count as a hang."""
    with program("hang", tmp_path / "trigger", after_s=0.2, hang_s=30) as one:
        assert one.ask("report") == {"left_ms": -1, "hung_ms": 0, "hits": 0}
    with program("hang", tmp_path / "trigger", after_s=0.1, hang_s=1) as one:
        assert 0 < one.ask("go")["left_ms"] <= 100
        deadline = time.monotonic() + 20
        while one.ask("report")["left_ms"]:
            assert time.monotonic() < deadline


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


@pytest.fixture
def agent(host: SimulatedHost, tmp_path: Path) -> Injector:
    return Injector(host, tmp_path, "w1")


@pytest.mark.parametrize(
    ("fault", "parameters", "field"),
    [
        ("reboot", {}, "accept_reboot"),
        ("reboot", {"how": "hard", "accept_reboot": True}, "accept_data_loss"),
        ("kernel_panic", {"accept_reboot": True}, "accept_data_loss"),
        ("kernel_hang", {}, "accept_reboot"),
        ("kernel_hang", {"accept_reboot": True, "hang_s": 121}, "hang_s"),
        ("reboot", {"accept_reboot": True, "delay_s": 0}, "delay_s"),
    ],
)
def test_nothing_happens_to_a_machine_that_nobody_agreed_to(
    agent: Injector, fault: str, parameters: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refusal) as refused:
        agent.apply("inj-1", fault, parameters, 60)
    assert refused.value.field == field and agent.injections(ended=True) == ()


def test_the_time_begins_when_the_injection_is_active(agent: Injector, host: SimulatedHost) -> None:
    told: list[tuple[str, str]] = []
    ask = host.helpers.ask

    def listening(name: str, request: str, *, timeout_s: float = 5.0) -> str:
        told.append((agent.view("inj-1").state if request == "go" else "", request))
        return ask(name, request, timeout_s=timeout_s)

    host.helpers.ask = listening  # type: ignore[method-assign]
    agent.apply("inj-1", "kernel_panic", BOTH, 60)
    assert [request for _, request in told if request == "go"] == ["go"]
    assert told.index(("applying", "go")) > 0, "after the evidence was read"
    (view,) = agent.recover(None, "recover")
    assert view.state == "recovered" and host.kernel.texts["/proc/sys/kernel/panic"] == "0"


def test_a_plan_says_what_it_takes_to_come_back(agent: Injector, host: SimulatedHost) -> None:
    stays = agent.plan("inj-1", "kernel_panic", {**BOTH, "reboot_after_s": 0})
    assert "its power has to be cut" in stays.notes.warnings[0] and set(stays.notes.risks) == {
        "reboot",
        "data_loss",
    }
    host.kernel.texts["/sys/kernel/kexec_crash_loaded"] = "1"
    assert "crash kernel" in agent.plan("inj-1", "kernel_panic", BOTH).notes.warnings[0]
    graceful = agent.plan("inj-1", "reboot", {"accept_reboot": True})
    assert set(graceful.notes.risks) == {"reboot"} and "too late" in graceful.notes.warnings[0]
    hang = agent.plan("inj-1", "kernel_hang", {"accept_reboot": True, "hang_s": 7})
    assert "cannot be recovered while it lasts: 7 s" in hang.notes.warnings[0]
    assert [type(step) for step in hang.steps][-1] is HelperProcess, "nothing begins before all else is set"


def test_a_reboot_in_order_needs_somebody_who_does_it(agent: Injector, host: SimulatedHost) -> None:
    del host.kernel.texts["/run/systemd/system"]
    with pytest.raises(Refusal, match="how: systemd does not run here") as refused:
        agent.apply("inj-1", "reboot", {"accept_reboot": True}, 60)
    assert refused.value.allowed == "hard"


def test_kernels_that_cannot(host: SimulatedHost) -> None:
    own_machine.probe(host)
    kernel_hang.probe(host)
    del host.kernel.texts["/sys/kernel/debug/sched/fair_server/cpu0/runtime"]
    with pytest.raises(Lacking, match="debugfs"):
        kernel_hang.probe(host)
    del host.kernel.texts["/proc/sysrq-trigger"]
    with pytest.raises(Lacking, match="sysrq-trigger"):
        own_machine.probe(host)
