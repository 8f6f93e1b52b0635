"""An agent that ends while it tries out the kernel: nothing of a probe is left, and no further one begins."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import node_agent.probe
from node_agent.host import DmTarget, Host
from node_agent.injector import Injector
from node_agent.probe import run_probes
from node_agent.residue import look
from tests.contract.simulated import SimulatedHost, fresh_kernel


def test_the_probe_that_runs_is_waited_for_and_no_other_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[str] = []

    def slow(host: Host) -> None:
        made.append("device")
        begun.set()
        assert go_on.wait(10)
        made.remove("device")

    def never(host: Host) -> None:
        raise AssertionError

    monkeypatch.setattr(node_agent.probe, "probes", lambda: {"a.slow": (slow, ""), "b.never": (never, "")})
    injector = Injector(SimulatedHost(fresh_kernel()), tmp_path, "w1")
    probing = threading.Thread(target=injector.capabilities)
    probing.start()
    assert begun.wait(10) and not injector.probing.end(0.01), "it still runs"
    go_on.set()
    assert injector.probing.end(10) and made == []
    probing.join(10)
    assert {name: one.available for name, one in injector.capabilities().items()} == {
        "a.slow": True, "b.never": False}  # fmt: skip


def test_an_agent_that_does_not_probe_ends_at_once(tmp_path: Path) -> None:
    injector = Injector(SimulatedHost(fresh_kernel()), tmp_path, "w1")
    assert injector.probing.end(0.01)
    assert not any(one.available for one in injector.capabilities().values())


def test_all_are_tried_where_nothing_ends() -> None:
    host = SimulatedHost(fresh_kernel())
    assert any(one.available for one in run_probes(host).values())


def test_what_a_probe_makes_meanwhile_is_no_residue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost(fresh_kernel())
    begun, go_on = threading.Event(), threading.Event()

    def slow(probed: Host) -> None:
        probed.dm.create("groundfault-probe-slow", [DmTarget(0, 8, "zero", "")])
        begun.set()
        assert go_on.wait(10)
        probed.dm.remove("groundfault-probe-slow")

    monkeypatch.setattr(node_agent.probe, "probes", lambda: {"a.slow": (slow, "")})
    injector = Injector(host, tmp_path, "w1")
    found: list[object] = []
    probing = threading.Thread(target=injector.capabilities)
    looking = threading.Thread(target=lambda: found.append(injector.residue()))
    probing.start()
    assert begun.wait(10)
    looking.start()
    looking.join(0.05)
    assert not found, "it waits"
    go_on.set()
    looking.join(10)
    probing.join(10)
    assert found == [()]


def test_a_device_that_goes_while_residue_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost(fresh_kernel())
    host.dm.create("going", [DmTarget(0, 8, "zero", "")])
    assert "going" in look(host)["dm"]

    def gone(name: str) -> tuple[DmTarget, ...]:
        raise OSError(errno.ENXIO, "No such device or address", name)

    monkeypatch.setattr(host.dm, "table", gone)
    assert look(host)["dm"] == {}
