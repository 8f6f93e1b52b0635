"""Faults of processes and CPUs: what is refused, what is restored, and what their helpers do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node_agent.errors import AgentError, ApplyError, ConflictError, Refusal
from node_agent.host.processes import UnitState
from node_agent.host.services import SystemdUnits
from node_agent.host.signals import ProcessSignals
from node_agent.injector import Injector
from node_agent.steps.base import Undo
from node_agent.steps.cpu_quota import CpuQuota, switches_above
from node_agent.steps.unit_again import UnitAgain
from node_agent.stressors import command
from tests.contract import simulated_processes as sim
from tests.contract.simulated import SimulatedHost, fresh_kernel

WITHIN_S = 60.0
POLICY = "/sys/devices/system/cpu/cpufreq/policy0"


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


@pytest.fixture
def injector(host: SimulatedHost, tmp_path: Path) -> Injector:
    return Injector(host, tmp_path, "w1")


class TestWhatControlNeeds:
    @pytest.mark.parametrize("fault", ["process_kill", "process_pause"])
    @pytest.mark.parametrize(
        "scope",
        [
            {"pid": 1}, {"tree": 1}, {"pid": 800}, {"pid": 4242}, {"unit": "ssh"}, {"unit": "init.scope"},
            {"cgroup": "/system.slice"}, {"cgroup": "/"}, {"cgroup": "/sessions"}, {"pid": 99999}, {},
            {"unit": "groundfault-agent"}, {"cgroup": "/groundfault-inj-1"}, {"unit": "cron", "pid": 700},
        ],
    )  # fmt: skip
    def test_is_refused(self, injector: Injector, host: SimulatedHost, fault: str, scope: dict[str, Any]) -> None:
        """A session is a control group with an sshd in it."""
        host.kernel.texts["/sys/fs/cgroup/sessions/cgroup.procs"] = "701\n800\n"
        host.kernel.texts["/sys/fs/cgroup/groundfault-inj-1/cgroup.procs"] = "701\n"
        injector.capabilities()
        before = dict(host.kernel.texts)
        with pytest.raises(Refusal) as refused:
            injector.apply("inj-2", fault, scope, 60)
        assert refused.value.allowed and refused.value.field and "\n" not in refused.value.message
        assert host.kernel.texts == before

    def test_the_journal_is_not_paused(self, injector: Injector, host: SimulatedHost) -> None:
        stat = host.kernel.texts["/proc/701/stat"]
        host.kernel.texts["/proc/701/stat"] = stat.replace("(child)", "(systemd-journal)")
        with pytest.raises(Refusal, match="which sshd and the agent write to"):
            injector.apply("inj-1", "process_pause", {"unit": "cron"}, 60)

    def test_a_name_that_nobody_has(self, injector: Injector) -> None:
        with pytest.raises(Refusal, match="no process called nginx") as refused:
            injector.apply("inj-1", "process_kill", {"unit": "cron", "process_name": "nginx"}, 60)
        assert refused.value.allowed == "one of child"

    @pytest.mark.parametrize(
        ("fault", "parameters", "field"),
        [
            ("process_kill", {"unit": "cron", "signal": "SIGNOTHING"}, "signal"),
            ("crash_loop", {"unit": "cron", "signal": "CONT"}, "signal"),
            ("process_pause", {"unit": "cron", "pause_s": 1}, "parameters"),
            ("cpu_throttle", {"unit": "cron", "quota_percent": 0.5}, "quota_percent"),
            ("cpu_throttle", {}, "unit"),
            ("cpu_burn", {"cpus": "0,7"}, "cpus"),
            ("cpu_burn", {"cpus": "one"}, "cpus"),
            ("cpu_offline", {"cpus": "0"}, "cpus"),
            ("cpu_offline", {"cpus": "1-2"}, "cpus"),
            ("cpu_frequency_cap", {"cpus": "1"}, "cpus"),
            ("cpu_frequency_cap", {"max_mhz": 700}, "max_mhz"),
        ],
    )
    def test_names_the_field(self, injector: Injector, fault: str, parameters: dict[str, Any], field: str) -> None:
        with pytest.raises(Refusal) as refused:
            injector.apply("inj-1", fault, parameters, 60)
        assert refused.value.field == field


class TestCpus:
    def test_a_cap_is_taken_back_to_what_it_was(self, injector: Injector, host: SimulatedHost) -> None:
        host.kernel.texts[f"{POLICY}/scaling_max_freq"] = "2500000"
        view = injector.apply("inj-1", "cpu_frequency_cap", {"max_percent": 40}, 60)
        assert host.kernel.texts[f"{POLICY}/scaling_max_freq"] == "1200000"
        assert view.evidence is not None and view.evidence.counters["highest_cap_khz"] == 1_200_000
        injector.recover(None, "recover")
        assert host.kernel.texts[f"{POLICY}/scaling_max_freq"] == "2500000"

    def test_a_lower_cap_than_ours_stays(self, injector: Injector, host: SimulatedHost) -> None:
        host.kernel.texts[f"{POLICY}/scaling_max_freq"] = "900000"
        with pytest.raises(ApplyError, match="900 MHz at most already"):
            injector.apply("inj-1", "cpu_frequency_cap", {}, 60)
        assert host.kernel.texts[f"{POLICY}/scaling_max_freq"] == "900000"

    def test_a_machine_without_frequencies(self, host: SimulatedHost, tmp_path: Path) -> None:
        for name in [path for path in host.kernel.texts if "cpufreq" in path]:
            del host.kernel.texts[name]
        with pytest.raises(AgentError, match="no frequency that the kernel can set") as lacking:
            Injector(host, tmp_path, "w1").apply("inj-1", "cpu_frequency_cap", {}, 60)
        assert "cpu_throttle" in lacking.value.allowed

    def test_one_that_is_offline_already(self, injector: Injector, host: SimulatedHost) -> None:
        host.write_text("/sys/devices/system/cpu/cpu1/online", "0")
        with pytest.raises(ConflictError, match="CPU 1 is offline already"):
            injector.apply("inj-1", "cpu_offline", {}, 60)

    def test_interrupts_come_back(self, injector: Injector, host: SimulatedHost) -> None:
        injector.apply("inj-1", "cpu_offline", {}, 60)
        host.kernel.texts["/proc/irq/9/smp_affinity_list"] = "0"  # as the kernel does it
        injector.recover(None, "recover")
        assert host.kernel.texts["/proc/irq/9/smp_affinity_list"] == "0-1"


RAN = UnitState("a.service", load="loaded", active="active", invocation="one", result="success")
DEAD = replace(RAN, active="failed", result="signal")


class FakeServices(sim.SimulatedServices):
    """A unit in a certain state, and the job that somebody asked for last."""

    def __init__(self, host: SimulatedHost, now: UnitState, job: str) -> None:
        super().__init__(host)
        self.now, self.job, self.done = now, job, list[str]()

    def state(self, unit: str) -> UnitState:
        return self.now

    def last_job(self, unit: str, mark: str) -> str:
        return self.job

    def start(self, unit: str, *, forget: bool) -> None:
        self.done.append("forget and start" if forget else "start")
        self.now = replace(self.now, active="active")

    def forget(self, unit: str) -> None:
        self.done.append("forget")


@pytest.mark.parametrize(
    ("now", "job", "once", "done"),
    [
        (RAN, "", True, []),
        (RAN, "", False, ["forget"]),
        (DEAD, "", True, ["forget and start"]),
        (DEAD, "start", False, ["forget and start"]),
        (replace(RAN, active="inactive"), "", True, ["start"]),
        (replace(RAN, active="inactive"), "stop", True, []),
        (replace(RAN, active="inactive"), "stop", False, []),
        (replace(DEAD, invocation="two"), "", True, []),
        (replace(DEAD, invocation="two"), "", False, ["forget and start"]),
        (replace(RAN, active="inactive", invocation=""), "", True, ["start"]),
        (replace(RAN, active="inactive", invocation=""), "start", True, []),
        (replace(RAN, active="inactive", invocation=""), "start", False, ["forget and start"]),
        (replace(DEAD, load="masked"), "", True, []),
        (replace(DEAD, load="not-found", active="inactive"), "", True, []),
    ],
)
def test_which_units_run_again(host: SimulatedHost, now: UnitState, job: str, once: bool, done: list[str]) -> None:
    undo: Undo = {"runs": {"a.service": "one"}, "mark": "s=1", "boot": host.boot_id()}
    host.services = units = FakeServices(host, now, job)
    step = UnitAgain(units=("a.service",), once=once)
    step.revert(host, undo)
    assert units.done == done and step.leftovers(host, undo) == ()
    step.revert(host, undo)
    assert [word for word in units.done if "start" in word] == [word for word in done if "start" in word]
    units.now, units.done = now, []
    step.revert(host, {**undo, "boot": "another"})
    assert "start" not in " ".join(units.done), "who starts units is systemd, when it boots"


def test_a_unit_that_did_not_run_is_not_started(host: SimulatedHost) -> None:
    host.services = units = FakeServices(host, DEAD, "")
    UnitAgain(units=("a.service",), once=False).revert(host, {"runs": {}, "mark": "", "boot": host.boot_id()})
    assert units.done == []


def test_what_systemd_says_of_a_unit() -> None:
    said = {
        "show": "LoadState=loaded\nActiveState=active\nMainPID=12\nNRestarts=3\nTransient=yes\n"
        "CPUQuotaPerSecUSec=500ms",
        "cursor": "a line\n-- cursor: s=1;i=2",
        "jobs": '{"JOB_TYPE":"start"}\n{"JOB_TYPE":"stop"}\n',
    }
    units = SystemdUnits(
        lambda argv: said["show" if argv[1] == "show" else "jobs" if "UNIT=a.service" in argv else "cursor"]
    )
    state = units.state("a.service")
    assert (state.runs, state.main_pid, state.restarts, state.transient, state.quota_us) == (
        True,
        12,
        3,
        True,
        "500ms",
    )
    assert units.mark() == "s=1;i=2" and units.last_job("a.service", "s=1;i=2") == "stop"
    assert units.last_job("a.service", "") == "", "nobody knows"
    with pytest.raises(OSError, match="does not answer"):
        SystemdUnits(lambda argv: None).state("a.service")


class TestQuota:
    folder = sim.GROUP
    quota = CpuQuota(root=sim.ROOT, folders=(folder,), value="10000 100000", units=("a.service",))

    @pytest.mark.parametrize(
        ("quota_us", "period_us", "says"),
        [
            ("infinity", "infinity", "max 100000"),
            ("500ms", "infinity", "50000 100000"),
            ("1.5s", "20ms", "30000 20000"),
        ],
    )
    def test_what_a_unit_was_given_meanwhile(
        self, host: SimulatedHost, quota_us: str, period_us: str, says: str
    ) -> None:
        before = replace(RAN, quota_us="250ms", period_us="infinity")
        host.services = units = FakeServices(host, before, "")
        undo = self.quota.capture(host)
        self.quota.apply(host)
        assert host.kernel.texts[f"{self.folder}/cpu.max"] == "10000 100000"
        units.now = replace(before, quota_us=quota_us, period_us=period_us)
        host.kernel.texts[f"{sim.ROOT}/system.slice/cpu.weight"] = "100"
        self.quota.revert(host, undo)
        assert host.kernel.texts.get(f"{self.folder}/cpu.max", says) == says
        assert self.quota.leftovers(host, undo) == ()

    def test_a_controller_that_others_use_stays_on(self, host: SimulatedHost) -> None:
        undo = self.quota.capture(host)
        self.quota.apply(host)
        host.kernel.texts[f"{sim.ROOT}/system.slice/other.service/cpu.weight"] = "300"
        self.quota.revert(host, undo)
        assert host.kernel.texts[f"{self.folder}/cpu.max"] == "max 100000"
        assert self.quota.leftovers(host, undo) == ()

    def test_one_that_is_lower_already(self, host: SimulatedHost) -> None:
        host.write_text(f"{sim.ROOT}/system.slice/cgroup.subtree_control", "+cpu")
        host.kernel.texts[f"{self.folder}/cpu.max"] = "5000 100000"
        with pytest.raises(ConflictError, match="a quota of 5 % already"):
            self.quota.capture(host)

    def test_the_switches_above(self) -> None:
        above = switches_above("/cg", ("/cg/a/b/c", "/cg/a/d"))
        assert above == tuple(f"{folder}/cgroup.subtree_control" for folder in ("/cg", "/cg/a", "/cg/a/b"))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Started:
    """A stressor, told its first line and ready."""

    def __init__(self, name: str, payload: dict[str, Any]) -> None:
        self.process = subprocess.Popen(command(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(payload) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def counters(self) -> dict[str, int]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("count\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline())["counters"])

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(WITHIN_S) == 0
        self.process.stdout.close()


@pytest.fixture
def sleeper() -> Any:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class TestKeeper:
    def test_it_follows_what_is_made_anew(self, tmp_path: Path) -> None:
        file = tmp_path / "group" / "value"
        file.parent.mkdir()
        file.write_text("0")
        keeper = Started("keeper", {"values": {str(file): "1"}, "rest": "0"})
        assert file.read_text() == "1"
        file.write_text("0")
        until(lambda: file.read_text() == "1")
        file.unlink()
        file.parent.rmdir()
        time.sleep(0.2)  # long enough for it to have looked
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "value").write_text("0")
        (tmp_path / "made").rename(file.parent)
        until(lambda: file.read_text() == "1")
        assert keeper.counters() == {"pauses": 1, "followed": 1, "set_again": 1}
        keeper.end()

    def test_in_turns_and_never_another_process(self, sleeper: Any) -> None:
        tick = started(sleeper.pid)
        keeper = Started("keeper", {"values": {}, "stop": [[sleeper.pid, tick]], "pause_s": 0.2, "run_s": 0.2})
        until(lambda: state(sleeper.pid) == "T")
        until(lambda: state(sleeper.pid) == "S")
        until(lambda: keeper.counters()["pauses"] >= 3)
        keeper.end()
        sleeper.send_signal(signal.SIGCONT)
        other = Started("keeper", {"values": {}, "stop": [[sleeper.pid, tick + 1]], "pause_s": 0.1, "run_s": 0.1})
        until(lambda: other.counters()["pauses"] >= 3)
        assert state(sleeper.pid) == "S"
        other.end()


def test_a_number_that_is_used_again_gets_no_signal(sleeper: Any) -> None:
    signals, tick = ProcessSignals(), started(sleeper.pid)
    assert not signals.signal(sleeper.pid, tick + 1, signal.SIGKILL) and sleeper.poll() is None
    assert not signals.set_affinity(sleeper.pid, tick + 1, frozenset({0}))
    assert signals.remaining([(sleeper.pid, tick)], 0.01) == [sleeper.pid]
    assert signals.signal(sleeper.pid, tick, signal.SIGKILL)
    assert signals.remaining([(sleeper.pid, tick), (sleeper.pid, tick + 1)], WITHIN_S) == []
    assert not signals.signal(sleeper.pid, tick, signal.SIGKILL), "it has ended, if nobody has waited for it"


def test_a_noisy_neighbour_goes_by_another_name() -> None:
    wanted = {"name": "backup", "workers": 2, "load_percent": 20, "cpus": [], "weight": 0, "respawn": True}
    burner = Started("cpu", wanted)
    pid = burner.process.pid
    assert Path(f"/proc/{pid}/comm").read_text() == "backup\n"
    assert Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == b"backup"
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 2 and burner.counters() == {"workers": 2, "replaced": 0}
    os.kill(int(children[0]), signal.SIGKILL)
    until(lambda: burner.counters() == {"workers": 2, "replaced": 1})
    burner.end()
    until(lambda: not Path(f"/proc/{children[1]}").exists() or state(int(children[1])) == "Z")
