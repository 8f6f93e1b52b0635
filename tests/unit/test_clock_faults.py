"""Faults of the wall clock on a simulated machine: what is taken back, what is left alone, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node_agent.clock_state import clock_state, same_clock
from node_agent.errors import AgentError, ConflictError, Refusal, UnsupportedError
from node_agent.faults.machine.own_machine import container_of
from node_agent.faults.machine.wall_clock import probe
from node_agent.host.clock import Keeper, Rate, Sync
from node_agent.injection import InjectionView
from node_agent.injector import Injector
from node_agent.journal import decode
from node_agent.probe import Lacking
from node_agent.showing import evidence_of_before
from node_agent.undo import applied_steps, undo_all
from tests.contract.simulated import Kernel, SimulatedHost, fresh_kernel
from tests.contract.simulated_clock import KEEPER, TRIGGER, SimulatedClock

RECORD = "/run/groundfault/groundfault-inj-1"
S = 1_000_000_000


class Machine:
    """A simulated machine and the agent on it."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.kernel: Kernel = fresh_kernel()
        self.host = SimulatedHost(self.kernel)
        self.agent = Injector(self.host, state_dir, "w1")

    def untouched(self) -> bool:
        """Whether nothing was changed, but by the probes."""
        before = self.host.changes
        self.agent.capabilities(again=True)
        return self.host.changes == 2 * before

    def inject(self, fault: str, **parameters: Any) -> InjectionView:
        return self.agent.apply("inj-1", fault, parameters, 600)

    def recover(self) -> InjectionView:
        (view,) = self.agent.recover(("inj-1",), "recover")
        assert view.state == "recovered" and RECORD not in self.kernel.texts
        return view

    def wrong_by(self) -> float:
        """Seconds that the wall clock is ahead of the true time."""
        natural = (self.kernel.clock - 1000) * 3e-6
        return (self.host.clock.now().wall / 1e9) - (1.8e9 + self.kernel.clock + natural)

    def evidence(self) -> Any:
        return self.agent.view("inj-1").evidence


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.002)


# -- rates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [Rate(10_000, 0), Rate(10_000, -17 << 16), Rate(10_002, 49 << 16)])
@pytest.mark.parametrize("ppm", [1.0, -1.0, 49.9, 555.5, -10_000.0, 99_000.0, -99_000.0])
def test_a_rate_is_made_of_ticks_and_the_rest(base: Rate, ppm: float) -> None:
    made = base.faster(ppm)
    assert made.ppm - base.ppm == pytest.approx(ppm, abs=0.001)
    assert 9_000 <= made.tick_us <= 11_000 and abs(made.freq) <= 500 << 16
    assert made.like(Rate(made.tick_us, made.freq + 1)) and not made.like(base)


def test_what_the_kernel_does_not_take_is_no_rate() -> None:
    assert Rate(10_000, 20 << 16).faster(100_000).tick_us == 11_000
    for ppm in (101_000, -101_000):
        with pytest.raises(ValueError, match="more than the kernel's clock can do"):
            Rate(10_000, 0).faster(ppm)


# -- clock_jump ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_s", [300.0, -86_400.0, 0.25, 400 * 86_400.0])
def test_a_jump_goes_back_by_the_true_time(machine: Machine, by_s: float) -> None:
    view = machine.inject("clock_jump", by_s=by_s)
    assert machine.wrong_by() == near(by_s) and view.evidence is not None
    assert view.evidence.counters == {"stepped_ms": round(by_s * 1000)} and view.evidence.notes == ()
    assert machine.kernel.time.sync.status & 0x40, "the kernel doubts its time, and leaves the RTC alone"
    machine.kernel.clock += 500
    machine.recover()
    assert machine.wrong_by() == near(0)
    assert machine.kernel.time.sync == Sync(0x2001, 1500 + 500 * 500, 300), "it trusts its time as it would by now"
    assert machine.agent.residue() == ()


def test_a_kernel_that_did_not_trust_its_time_does_not_afterwards(machine: Machine) -> None:
    machine.kernel.time.sync = Sync(0x41, 16_000_000, 16_000_000)
    machine.inject("clock_jump")
    machine.recover()
    assert machine.kernel.time.sync.status == 0x41


@pytest.mark.parametrize(
    ("by_s", "by_hand_s", "left_s"),
    [
        (300, -300, 0),  # corrected: there is nothing to take back
        (300, -297, 3),  # by hand, and not exactly
        (300, 3600, 3600),  # the clock put an hour ahead for reasons of their own
        (-86_400, 86_399.5, -0.5),
        (-86_400, -7200, -7200),
    ],
)
def test_what_an_administrator_does_meanwhile_stays(
    machine: Machine, by_s: float, by_hand_s: float, left_s: float
) -> None:
    machine.inject("clock_jump", by_s=by_s)
    machine.kernel.time.offset += int(by_hand_s * S)
    found = machine.evidence()
    assert "somebody else has set the clock" in found.notes[0] and found.hits == 1
    assert found.armed == (abs(by_s + by_hand_s) > abs(by_hand_s))
    machine.recover()
    assert machine.wrong_by() == near(left_s)
    different = [d for d in machine.agent.residue() if not d.foreign]
    assert different == [], "and is nothing of ours"


def test_undone_twice_after_a_step_by_hand(machine: Machine) -> None:
    """Where the offset alone would look as if our part still stood."""
    machine.inject("clock_jump", by_s=600)
    records, _ = decode((machine.state_dir / "journal" / "inj-1.journal").read_bytes())
    machine.kernel.time.offset += 3600 * S
    for _ in range(3):
        assert undo_all(machine.host, applied_steps(records, 0), lambda one: None).left == ()
        assert machine.wrong_by() == near(3600)


@pytest.mark.parametrize("text", ["", '{"before": {'])
def test_a_record_that_is_lost_or_torn(machine: Machine, text: str) -> None:
    machine.inject("clock_jump", by_s=60)
    machine.kernel.texts[RECORD] = text
    machine.recover()
    assert machine.wrong_by() == near(0)


def test_the_offset_of_another_boot_says_nothing(machine: Machine) -> None:
    """A minute after the boot the boot clock is a minute from the wall clock: as it would be after a jump."""
    machine.inject("clock_jump", by_s=60)
    records, _ = decode((machine.state_dir / "journal" / "inj-1.journal").read_bytes())
    machine.kernel.reboot()
    machine.kernel.time.offset += 60 * S
    again = Injector(SimulatedHost(machine.kernel), machine.state_dir, "w1")
    (view,) = again.start()
    assert view.state == "recovered" and machine.kernel.time.offset == 1_800_000_060 * S
    assert view.evidence is not None and "planted in boot boot-1, this is boot boot-2" in view.evidence.notes[0]
    assert applied_steps(records, 0)[-1].step.leftovers(machine.host, applied_steps(records, 0)[-1].undo) == ()


def test_a_clock_that_nobody_could_live_with_is_refused(machine: Machine) -> None:
    with pytest.raises(Refusal, match="by_s: the clock would show 2017-") as refused:
        machine.inject("clock_jump", by_s=-3649 * 86_400)
    low, high = (float(word) for word in refused.value.allowed.split(" to "))
    assert low < -2e8 and high > 2e9 and machine.untouched()
    with pytest.raises(Refusal, match="nobody would notice"):
        machine.inject("clock_jump", by_s=0.01)


def test_the_plan_says_how_to_get_there_when_certificates_fail(machine: Machine) -> None:
    far = machine.agent.plan("inj-1", "clock_jump", {"by_s": -86_400 * 3}).notes.warnings
    close = machine.agent.plan("inj-1", "clock_jump", {"by_s": 60}).notes.warnings
    assert any("--transport ssh" in one for one in far) and not any("ssh" in one for one in close)


# -- clock_drift ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "ppm"), [({}, 10_000), ({"ppm": -250}, -250), ({"s_per_hour": 3.6}, 1000)])
def test_a_drift_is_taken_out_and_ends(machine: Machine, given: dict[str, float], ppm: float) -> None:
    view = machine.inject("clock_drift", **given)
    assert machine.kernel.time.rate.ppm == pytest.approx(3 + ppm, abs=0.01)
    assert view.evidence is not None and view.evidence.counters["rate_ppm"] == ppm
    assert machine.kernel.time.sync.status & 0x40, "or the kernel would copy the wrong time to the RTC"
    machine.kernel.clock += 100
    assert machine.wrong_by() == near(ppm * 100 / 1e6)
    assert machine.evidence().counters["gained_ms"] == pytest.approx(ppm / 10, abs=1)
    machine.recover()
    assert machine.wrong_by() == near(0) and machine.kernel.time.rate == Rate(10_000, 3 << 16)
    assert machine.kernel.time.sync.status == 0x2001
    machine.kernel.clock += 1000
    assert machine.wrong_by() == near(0)


@pytest.mark.parametrize(("by_hand_s", "left_s"), [(-1.0, 0.0), (-0.4, 0.0), (3600.0, 3600.0), (-60.0, -60.0)])
def test_who_corrects_a_drifting_clock_has_corrected_it(machine: Machine, by_hand_s: float, left_s: float) -> None:
    machine.inject("clock_drift", ppm=10_000)
    machine.kernel.clock += 100
    machine.kernel.time.offset += int(by_hand_s * S)
    machine.kernel.clock += 100
    machine.recover()
    assert machine.wrong_by() == near(left_s)


def test_a_rate_that_somebody_else_has_set_stays(machine: Machine) -> None:
    machine.inject("clock_drift", ppm=10_000)
    machine.kernel.clock += 100
    machine.host.clock.set_rate(Rate(10_000, 9 << 16))
    assert not machine.evidence().armed and "somebody else has set the rate" in machine.evidence().notes[0]
    machine.recover()
    assert machine.wrong_by() == near(0) and machine.kernel.time.rate == Rate(10_000, 9 << 16)


def test_drifts_that_cannot_be(machine: Machine) -> None:
    for wrong, why in (
        ({"ppm": 100_001}, "less than or equal to 100000"),
        ({"ppm": 5, "s_per_hour": 1}, "exclude each other"),
        ({"ppm": 0.5}, "nobody would notice"),
    ):
        with pytest.raises(Refusal, match=why):
            machine.inject("clock_drift", **wrong)
    machine.kernel.time.rate = Rate(10_600, 0)
    with pytest.raises(Refusal, match=r"ppm: .*more than the kernel's clock can do") as refused:
        machine.inject("clock_drift", ppm=50_000)
    assert refused.value.allowed == "less than 40000 ppm" and machine.untouched()


def test_one_clock_has_one_fault(machine: Machine) -> None:
    machine.inject("clock_drift")
    with pytest.raises(ConflictError, match="inj-1"):
        machine.agent.apply("inj-2", "clock_jump", {}, 60)
    machine.recover()


# -- who keeps the time --------------------------------------------------------------------------------------


def test_exactly_who_ran_runs_again(machine: Machine) -> None:
    assert "kept by chrony-start.timer, chrony.service" in machine.inject("clock_jump").target
    assert machine.kernel.time.running == set()
    machine.recover()
    assert machine.kernel.time.running == {KEEPER, TRIGGER}
    machine.kernel.time.running = set()
    machine.agent.apply("inj-2", "clock_jump", {}, 60)
    machine.agent.recover(None, "recover")
    assert machine.kernel.time.running == set(), "nobody kept it, and nobody does now"


def test_one_that_starts_meanwhile_is_told(machine: Machine) -> None:
    machine.inject("clock_jump")
    machine.kernel.time.running.add(KEEPER)
    assert machine.evidence().notes == ("chronyd (process 900) runs and may correct the clock",)
    machine.recover()


def test_a_keeper_that_could_not_be_started_again_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedClock, "keepers", lambda self: [Keeper(812, "ntpd", "")])
    with pytest.raises(ConflictError, match=r"process 812 \(ntpd\) keeps the clock and belongs to no service"):
        machine.inject("clock_drift")
    assert machine.untouched()


def test_setting_the_clock_is_refused_while_a_fault_holds_it(machine: Machine) -> None:
    machine.inject("clock_jump")
    with pytest.raises(ConflictError, match=r"held by injection inj-1 \(clock_jump\)") as refused:
        machine.agent.set_clock(1.9e9)
    assert refused.value.allowed.startswith("labctl recover inj-1") and machine.wrong_by() == near(300)
    machine.recover()
    machine.agent.set_clock(1.9e9)
    assert machine.host.clock.now().wall == pytest.approx(1.9e9 * S)
    assert machine.agent.residue() == (), "what was set on purpose is what it should be"


# -- whose clock it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ({}, ""),
        ({"/proc/1/environ": "container=lxc\0TERM=linux\0"}, "lxc"),
        ({"/proc/1/environ": "TERM=linux\0container=\0"}, ""),
        ({"/run/systemd/container": "docker"}, "there is /run/systemd/container"),
        ({"/.dockerenv": ""}, "there is /.dockerenv"),
    ],
)
def test_a_container_shares_its_clock(machine: Machine, texts: dict[str, str], kind: str) -> None:
    machine.kernel.texts |= texts
    assert container_of(machine.host) == kind
    if not kind:
        probe(machine.host)
        return
    for fault in ("clock_jump", "clock_drift", "kernel_panic", "kernel_hang", "reboot"):
        with pytest.raises(UnsupportedError, match=r"this node is a container .* its host's"):
            machine.inject(fault)


def test_a_time_namespace_has_another_boot_clock(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedHost, "realpath", lambda self, path: "/proc/7/ns/time:[4026532501]")
    with pytest.raises(Lacking, match="time namespace"):
        probe(machine.host)


def test_no_right_to_set_the_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, rate: Rate) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(SimulatedClock, "set_rate", refuse)
    with pytest.raises(AgentError, match="Operation not permitted") as refused:
        machine.inject("clock_drift")
    assert "CAP_SYS_TIME" in refused.value.allowed


# -- the host's state ----------------------------------------------------------------------------------------


def test_the_residue_takes_no_keeping_of_the_time_for_a_difference(machine: Machine) -> None:
    before = clock_state(machine.host)
    machine.kernel.time.offset += S
    machine.kernel.time.rate = Rate(10_001, -90 << 16)
    after = clock_state(machine.host)
    assert all(same_clock(before[item], after[item]) for item in before)
    machine.kernel.time.offset += 2 * S
    machine.kernel.time.rate = Rate(10_050, 0)
    after = clock_state(machine.host)
    assert not any(same_clock(before[item], after[item]) for item in before)
    assert not same_clock("", "3 s") and not same_clock("3 s", "3 s groundfault-inj-1")


def test_what_is_known_after_a_reboot() -> None:
    plan = {"rec": "plan", "boot_id": "a", "risks": {"reboot": "it goes"}}
    assert evidence_of_before([plan], "a") is None
    rebooted = evidence_of_before([plan], "b")
    assert rebooted is not None and rebooted.hits == 1 and "boot a" in rebooted.notes[0]
    harmless = evidence_of_before([{**plan, "risks": {}}], "b")
    assert harmless is not None and harmless.hits == 0
    called_off = evidence_of_before([plan, {"rec": "closed", "hits": 0}], "b")
    assert called_off is not None and called_off.hits == 0, "it was over before the node rebooted"
