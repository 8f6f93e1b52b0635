"""clock_jump and clock_drift on a real kernel, by a meter that is not the agent's, and beside a healthy node."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json, until
from tests.vm.clock_meter import ClockMeter, Reading, clock_meter

pytestmark = pytest.mark.vm

DAY_S = 86_400.0
NOISE_S = 0.25
"""What is not known of a clock that is read over a connection to a busy emulated machine, at most."""

DRIFT_S, USUAL_PPM = 12.0, 88.1
"""How long a drift is measured, and how fast the meter has the clock run beforehand."""

KEEPER = """
cat > /usr/local/sbin/ntpd <<'END'
#!/bin/sh
# Puts the clock back to where it was when this began, again and again, as a time service does.
right=$(( $(date +%s) - $(cut -d. -f1 /proc/uptime) ))
while sleep 0.3; do
    off=$(( $(date +%s) - $(cut -d. -f1 /proc/uptime) - right ))
    [ ${off#-} -lt 2 ] || { date -s @$(( $(date +%s) - off )); echo corrected >> /run/corrected; }
done
END
chmod +x /usr/local/sbin/ntpd
printf '[Service]\\nExecStart=/usr/local/sbin/ntpd\\n' > /etc/systemd/system/right.service
printf '[Timer]\\nOnActiveSec=1\\nOnUnitInactiveSec=1\\n' > /etc/systemd/system/right.timer
systemctl daemon-reload; systemctl start right.timer right.service
"""
RUNNING = "systemctl is-active right.timer right.service; cat /run/corrected 2>/dev/null; true"

_NUMBERS = itertools.count(1)


@dataclass
class Clocks:
    """A node whose clock is spoilt, and a neighbour's."""

    node: Node
    agent: AgentClient
    meter: ClockMeter
    neighbour: ClockMeter

    def sh(self, script: str) -> str:
        return ssh(self.node, script).stdout.strip()

    def inject(self, fault: str, lease_s: float = 600, **parameters: Any) -> InjectionView:
        view = self.agent.apply(f"clock-{next(_NUMBERS)}", fault, parameters, lease_s)
        assert view.evidence is not None and view.evidence.armed and view.evidence.hits == 1, view
        return view

    def look(self, view: InjectionView) -> InjectionView:
        (now,) = self.agent.list(ids=(view.id,), ended=True).injections
        return now

    def recover(self, view: InjectionView) -> None:
        (ended,) = self.agent.recover((view.id,)).injections
        assert (ended.state, ended.residue) == ("recovered", ()), ended


@pytest.fixture(scope="module")
def clocks(lab: LabUnderTest) -> Iterator[Clocks]:
    lab.reset()
    with ExitStack() as stack:
        agent = AgentClient(stack.enter_context(connect(lab.node("w1"), lab.authority)))
        meters = [stack.enter_context(clock_meter(lab.node(name))) for name in ("w1", "w2")]
        yield Clocks(lab.node("w1"), agent, *meters)
    lab.reset()


@pytest.fixture(autouse=True)
def nothing_stays(clocks: Clocks) -> Iterator[tuple[Reading, Reading]]:
    """Around each test: the clock is where it was, and believed as it was, and nobody else's has moved."""
    before, other = clocks.meter.ask("sync"), clocks.neighbour.ask()
    yield before, other
    clocks.agent.recover(everything=True)
    after, later = clocks.meter.ask(), clocks.neighbour.ask()
    assert abs(later.ahead_s - other.ahead_s) < NOISE_S, "the neighbour's clock"
    assert abs(after.ahead_s - before.ahead_s) < NOISE_S, (before, after)
    assert after.kernel[:2] == before.kernel[:2]
    assert [d for d in clocks.agent.residue() if not d.foreign] == []


def test_a_year_ahead_with_a_time_service_held_off(clocks: Clocks, nothing_stays: tuple[Reading, Reading]) -> None:
    before, other = nothing_stays
    clocks.sh(KEEPER)
    labctl("inject", "clock_jump", "--node", "w1", "--by-s", str(400 * DAY_S), "--id", "far")
    there = clocks.meter.ask()
    assert abs(there.ahead_s - before.ahead_s - 400 * DAY_S) < NOISE_S
    assert clocks.sh(f"date +%Y; sleep 2; {RUNNING}").split()[1:3] == ["inactive", "inactive"]
    assert abs(clocks.meter.ask().ahead_s - there.ahead_s) < NOISE_S, "nobody corrects it"
    passed = there.ours_s - before.ours_s
    assert abs(there.boot_s - before.boot_s - passed) < NOISE_S, "the boot clock goes on as ever"
    assert abs(clocks.neighbour.ask().ahead_s - other.ahead_s) < NOISE_S
    rtc = float(clocks.sh("cat /sys/class/rtc/rtc0/since_epoch"))
    assert abs(rtc - time.time()) < 10, "the RTC is not touched"
    assert there.status & 0x40, "or the kernel would set it"
    (seen,) = labctl_json("injections")["injections"]
    assert seen["target"] == "the wall clock, kept by right.timer, right.service"
    assert seen["evidence"]["counters"] == {"stepped_ms": 400 * 86_400_000}
    with pytest.raises(Exception, match=r"the clock is held by injection far \(clock_jump\)"):
        clocks.agent.set_clock(time.time())
    labctl("recover", "far")
    after = clocks.meter.ask()
    assert abs(after.ahead_s - before.ahead_s) < NOISE_S
    assert after.kernel == before.kernel, "and the kernel trusts its time again"
    assert 20_000 < after.max_error_us < 200_000, "by as much as it would, had nothing happened"
    assert clocks.sh(RUNNING).split() == ["active", "active"], "and there was nothing to correct"
    clocks.sh("systemctl stop right.timer right.service")


def test_a_node_that_lives_before_its_certificates(clocks: Clocks) -> None:
    labctl("inject", "clock_jump", "--node", "w1", "--by-s", str(-400 * DAY_S), "--id", "past")
    clocks.sh("logger something")
    refused = labctl("recover", "past", status=75)
    assert "refuses our certificate as not yet valid: node clock is 20" in refused.stderr
    (seen,) = labctl_json("--transport", "ssh", "evidence", "past")["injections"]
    assert [sign["seen"] for sign in seen["evidence"]["signs"]] == [True], seen["evidence"]["signs"]
    labctl("--transport", "ssh", "recover", "past")


@pytest.mark.thorough
def test_the_agent_is_killed_while_it_stands(clocks: Clocks, nothing_stays: tuple[Reading, Reading]) -> None:
    before, _ = nothing_stays
    clocks.inject("clock_jump", by_s=7200)
    clocks.sh("systemctl kill --signal=KILL groundfault-agent")
    until(
        "the next start has put it back", lambda: abs(clocks.meter.ask().ahead_s - before.ahead_s) < NOISE_S, 120
    )
    assert clocks.meter.ask().kernel == before.kernel
    ssh(clocks.node, "systemctl start groundfault-agent")  # which waits until it serves


def test_an_administrator_steps_the_clock_meanwhile(
    clocks: Clocks, nothing_stays: tuple[Reading, Reading]
) -> None:
    before, _ = nothing_stays
    view = clocks.inject("clock_jump", by_s=-1800)
    clocks.meter.ask("step 1800")
    now = clocks.look(view).evidence
    assert now is not None and not now.armed and "somebody else has set the clock" in now.notes[0]
    clocks.recover(view)
    assert abs(clocks.meter.ask().ahead_s - before.ahead_s) < NOISE_S, (
        "they have corrected it: nothing is taken back"
    )
    view = clocks.inject("clock_jump", by_s=-1800)
    clocks.meter.ask("step 60")
    assert (now := clocks.look(view).evidence) is not None and now.armed
    clocks.recover(view)
    assert abs(clocks.meter.ask().ahead_s - before.ahead_s - 60) < NOISE_S, (
        "our part is taken back, and theirs stays"
    )
    clocks.meter.ask("step -60")


@pytest.mark.parametrize("ppm", [90_000.0, -4_000.0])
def test_a_drift_by_its_rate_and_a_lease_by_true_time(
    clocks: Clocks, nothing_stays: tuple[Reading, Reading], ppm: float
) -> None:
    before, _ = nothing_stays
    lease_s = 40.0 if ppm > 0 else 600.0
    view = clocks.inject("clock_drift", lease_s, ppm=ppm)
    began, first = time.monotonic(), clocks.meter.ask()
    assert 9_000 <= first.tick_us <= 11_000 and first.status & 0x40
    until("some seconds have gone by", lambda: clocks.meter.ask().raw_s - first.raw_s > DRIFT_S)
    second = clocks.meter.ask()
    rate = (second.ahead_s - first.ahead_s) / (second.raw_s - first.raw_s) * 1e6
    slack = (first.doubt_s + second.doubt_s) / 2 / DRIFT_S * 1e6 + 100
    assert abs(rate - ppm - USUAL_PPM) < slack, (rate, slack)
    boot_rate = (second.boot_s - first.boot_s) / (second.raw_s - first.raw_s)
    assert abs((boot_rate - 1) * 1e6 - ppm - USUAL_PPM) < 400, "the boot clock drifts as well"
    evidence = clocks.look(view).evidence
    assert evidence is not None and evidence.notes == () and evidence.counters["rate_ppm"] == round(ppm)
    assert evidence.counters["gained_ms"] * ppm > 0
    if ppm > 0:
        until("its lease ends", lambda: clocks.look(view).state == "recovered", 60)
        assert time.monotonic() - began > lease_s - 1, "by the boot clock it would be after 36.7 s"
    else:
        clocks.recover(view)
    after = clocks.meter.ask()
    assert abs(after.ahead_s - before.ahead_s) < 0.1 and after.kernel == before.kernel


WHOSE = """
cat > /run/whose.py <<'END'
import sys
sys.path.insert(0, "/opt/groundfault/lib")
import os
from types import SimpleNamespace
from pathlib import Path
from node_agent.host.system_clock import SystemClock
from node_agent.faults.machine.wall_clock import probe
from node_agent.probe import Lacking
try:
    read, exists = (lambda path: Path(path).read_text()), (lambda path: Path(path).exists())
    probe(SimpleNamespace(clock=SystemClock(), realpath=os.path.realpath, read_text=read, exists=exists))
    print("its own")
except (Lacking, OSError) as error:
    print(error)
END
R="/usr/bin/python3 /run/whose.py"
$R
systemd-run --quiet --pipe --wait --property=CapabilityBoundingSet=~CAP_SYS_TIME $R
unshare --time --fork $R
env container=test unshare --pid --fork --mount-proc $R
rm /run/whose.py
"""


def test_a_clock_that_is_shared_is_left_alone(clocks: Clocks) -> None:
    own, without, namespace, container = ssh(clocks.node, WHOSE, timeout=600).stdout.splitlines()
    assert own == "its own" and "Operation not permitted" in without
    assert "time namespace" in namespace and "container (test)" in container
