"""process_kill, process_pause and crash_loop on a real kernel, by what systemd and /proc say of their victims."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import pytest

from labctl.errors import LabctlError
from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.disks import Bench, disk_bench
from tests.vm.services import COUNTS, GROUPS, beats, becomes, main_pid, services, show

pytestmark = pytest.mark.vm

ALWAYS = "Restart=always\nRestartSec=100ms"
FREEZE = f"{GROUPS}/victim.service/cgroup.freeze"
INSIDE = f"ls -d {GROUPS}/victim.service/*/"

AGAIN = (
    'for (1 .. 20) { open F, ">/proc/sys/kernel/ns_last_pid"; print F $ARGV[0] - 1; close F; '
    'if (!($p = fork)) { setpgrp; close STDIN; close STDOUT; close STDERR; exec "sleep", 601 } '
    "last if $p == $ARGV[0]; kill 9, $p; waitpid $p, 0 } exit($p != $ARGV[0])"
)
"""Makes a process that has a certain number."""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w1") as one, services(one, neighbour=("Restart=always", COUNTS)):
        yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    """Whatever a test did, its neighbour has run all the time, and nothing is left."""
    before = show(bench, "neighbour", "MainPID", "NRestarts", "InvocationID")
    bench.mine.clear()
    yield
    bench.recover_all()
    until("nothing is left", lambda: bench.agent.residue() == (), 30)
    assert show(bench, "neighbour", "MainPID", "NRestarts", "InvocationID") == before
    assert beats(bench, "neighbour", seconds=0.5)[0] >= 2


def state_of(bench: Bench, pid: int) -> str:
    """The letter that ps shows; empty for one that is gone."""
    return bench.sh(f"ps -o stat= -p {pid}", check=False)[:1]


def refused(bench: Bench, fault: str, **parameters: object) -> str:
    """What is said when a fault is not planted."""
    with pytest.raises(LabctlError) as refusal:
        bench.agent.apply(f"refused-{token_hex(4)}", fault, parameters, 60)
    return f"{refusal.value} {getattr(refusal.value, 'hint', '')}"


def test_killed_and_started_again_by_systemd(bench: Bench) -> None:
    with services(bench, victim=(ALWAYS, COUNTS)):
        old = main_pid(bench, "victim")
        view = bench.inject("process_kill", unit="victim")
        until("systemd has started it again", lambda: main_pid(bench, "victim") not in (0, old), 20)
        new, restarts, run = show(bench, "victim", "MainPID", "NRestarts", "InvocationID")
        assert restarts == "1" and state_of(bench, old) == ""
        found = bench.evidence(view)
        assert found.hits == found.counters["ended"] >= 2, "the counter and its child"
        assert f"main process {old} -> {new}" in " ".join(found.notes) and found.counters["restarts"] == 1
        assert "code=killed, status=9/KILL" in bench.sh("journalctl -q -o cat -u victim -n 20")
        bench.recover(view)
        assert show(bench, "victim", "MainPID", "InvocationID") == [new, run], "it is not started twice"
        assert beats(bench, "victim")[0] > 3

        by_name = bench.inject("process_kill", unit="victim", process_name="sl*p", which="one", seed=5)
        assert bench.evidence(by_name).hits == 1 and main_pid(bench, "victim") == int(new)
        again = bench.inject("process_kill", unit="victim", which="main", signal="SEGV")
        until("it runs again", lambda: main_pid(bench, "victim") not in (0, int(new)), 20)
        assert "status=11/SEGV" in bench.sh("journalctl -q -o cat -u victim -n 20")
        bench.sh("systemctl stop victim")
        bench.recover(again)
        bench.recover(by_name)
        assert show(bench, "victim", "ActiveState") == ["inactive"], "the administrator has stopped it"
        assert "victim.service has no processes" in refused(bench, "process_kill", unit="victim")


def test_what_stays_down_is_started_at_recovery(bench: Bench) -> None:
    """By a signal that systemd takes for a failure, and by one that it takes for a good end."""
    bench.sh("systemd-run -q --unit=passing sleep 1000")
    with services(bench, victim=("Restart=on-failure", COUNTS), other=("Restart=no", COUNTS)):
        clean = bench.inject("process_kill", unit="victim", signal="SIGTERM")
        failed = bench.inject("process_kill", unit="other")
        transient = bench.inject("process_kill", unit="passing")
        becomes(bench, "victim", "inactive")
        becomes(bench, "other", "failed")
        becomes(bench, "passing", "failed")
        assert "other.service is failed (signal)" in " ".join(bench.evidence(failed).notes)
        stays = bench.agent.plan("planned-1", "process_kill", {"unit": "neighbour", "restore": False})
        assert "neighbour.service has Restart=always: it is started again" in " ".join(stays.warnings)
        for view in (clean, failed, transient):
            bench.recover(view)
        states = [show(bench, unit, "ActiveState")[0] for unit in ("victim", "other", "passing")]
        assert states == ["active"] * 3
        assert bench.sh("systemctl list-units --plain --no-legend 'groundfault-keeps*'") == ""

        # The rest of it goes on without a child; then somebody stops it, and it stays so.
        child = bench.inject("process_kill", unit="victim", process_name="sleep")
        bench.sh("systemctl stop victim")
        bench.recover(child)
        assert show(bench, "victim", "ActiveState") == ["inactive"]
    bench.sh("systemctl stop passing")


def test_a_unit_stands_still_through_its_restart(bench: Bench) -> None:
    with services(bench, victim=(f"{ALWAYS}\nExecReload=/bin/true", COUNTS)):
        view = bench.inject("process_pause", unit="victim")
        assert beats(bench, "victim", "neighbour")[0] == 0 and beats(bench, "neighbour")[0] > 3
        found = bench.evidence(view)
        assert found.counters["frozen"] == 1 and found.hits >= 1
        old = main_pid(bench, "victim")
        bench.sh("systemctl restart victim")
        until("it is frozen again", lambda: bench.evidence(view).counters["followed"] == 1, 20)
        assert main_pid(bench, "victim") != old and beats(bench, "victim")[0] == 0
        # pid 1 starts processes in a service whose others stand still, and waits for none of them.
        bench.sh("systemctl reload victim >/dev/null 2>&1 & sleep 2; systemctl is-active neighbour")
        came = bench.sh(f"sleep 600 >/dev/null 2>&1 & echo $! > {GROUPS}/victim.service/cgroup.procs; echo $!")
        until("who came to it stands still, too", lambda: view.id in bench.sh(f"cat /proc/{came}/cgroup"))
        bench.recover(view)
        inside = bench.sh(f"{INSIDE}; cat {FREEZE}", check=False)
        assert inside == "0" and beats(bench, "victim")[0] > 3
        bench.sh(f"kill {came}")


def test_in_turns(bench: Bench) -> None:
    """A unit that runs half the time, and a tree of processes that runs a third."""
    with services(bench, victim=(ALWAYS, COUNTS), other=("Restart=no", COUNTS)):
        before = beats(bench, "victim", "other", seconds=4)
        half = bench.inject("process_pause", unit="victim", pause_s=0.5, run_s=0.5)
        third = bench.inject("process_pause", tree=main_pid(bench, "other"), pause_s=0.6, run_s=0.3)
        during = beats(bench, "victim", "other", seconds=6)
        per_second = [d / 6 / (b / 4) for b, d in zip(before, during, strict=True)]
        assert 0.3 < per_second[0] < 0.75 and 0.15 < per_second[1] < 0.6, (before, during)
        assert bench.evidence(half).counters["pauses"] >= 5 and bench.evidence(third).counters["pauses"] >= 5
        bench.recover(half)
        bench.recover(third)
        assert min(beats(bench, "victim", "other")) > 3


def test_a_tree_is_stopped_and_a_number_used_again_is_left_alone(bench: Bench) -> None:
    tree, alone = bench.sh(
        "setsid sh -c 'sh -c \"sleep 600; :\" & sleep 600; :' >/dev/null 2>&1 & echo $!; "
        "sleep 600 >/dev/null 2>&1 & echo $!"
    ).split()
    family = [int(pid) for pid in bench.sh(f"pgrep -g {tree}").split()]
    assert len(family) == 4
    view = bench.inject("process_pause", tree=int(tree))
    single = bench.inject("process_pause", pid=int(alone))
    assert {state_of(bench, pid) for pid in (*family, int(alone))} == {"T"}
    assert bench.evidence(view).counters == {"processes": 4, "stopped": 4}
    # Another process gets the number of the one that was stopped, and is stopped by somebody else.
    bench.sh(f"kill -9 {alone}")
    until("it is gone", lambda: state_of(bench, int(alone)) == "")
    bench.sh(f"perl -e '{AGAIN}' {alone}; kill -STOP {alone}")
    reused = bench.sh(f"cat /proc/{alone}/comm")
    assert reused == "sleep" and state_of(bench, int(alone)) == "T"
    assert bench.evidence(single).counters["processes"] == 0
    bench.recover(single)
    assert state_of(bench, int(alone)) == "T", "it is another process, and was not stopped by us"
    bench.recover(view)
    assert {state_of(bench, pid) for pid in family} == {"S"}
    bench.sh(f"kill -9 -{tree} {alone}", check=False)


def test_a_container_that_goes_and_comes_back(bench: Bench) -> None:
    """A control group as Docker makes one with systemd; its id is all that is known of it."""
    identity = "5e" * 32
    name = f"docker-{identity}"
    run = f"systemd-run -q --unit={name} --scope sh /run/box.sh >/dev/null 2>&1 &"
    bench.sh(f"cat > /run/box.sh <<'END'\n{COUNTS.replace('$0', 'box')}\nEND\n{run}")
    until("it counts", lambda: bench.sh("cat /run/box.count", check=False) != "")
    view = bench.inject("process_pause", container=identity[:12])
    assert beats(bench, "box")[0] == 0
    bench.sh(f"systemctl kill -s KILL {name}.scope")
    until("it is gone", lambda: "it does not run now" in bench.evidence(view).notes)
    assert bench.look(view).evidence.armed  # type: ignore[union-attr]
    bench.sh(f"systemctl reset-failed {name}.scope", check=False)
    bench.sh(run)
    until("the new one is frozen", lambda: bench.evidence(view).counters["followed"] == 1)
    assert beats(bench, "box")[0] == 0
    bench.sh(f"systemctl kill -s KILL {name}.scope")
    until("it is gone", lambda: "it does not run now" in bench.evidence(view).notes)
    bench.recover(view)


def test_a_crash_loop_ends_at_the_start_limit(bench: Bench) -> None:
    limit = f"{ALWAYS}\n[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=300"
    with services(bench, victim=(limit, COUNTS)):
        view = bench.inject("crash_loop", unit="victim", after_s=0.3)
        becomes(bench, "victim", "failed", within_s=60)
        said = bench.sh("journalctl -q -o cat -u victim -n 40")
        assert "status=11/SEGV" in said and "Start request repeated too quickly" in said
        assert "failed" in bench.says("systemctl start victim"), "systemd refuses to start it"
        found = bench.evidence(view)
        assert found.hits == found.counters["kills"] == found.counters["starts"] == 3 and found.armed
        bench.recover(view)
        assert show(bench, "victim", "ActiveState", "NRestarts") == ["active", "0"]
        assert beats(bench, "victim")[0] > 3

        twice = bench.inject("crash_loop", unit="victim", after_s=0.2, count=2, signal="SIGKILL")
        until("it has died twice", lambda: bench.evidence(twice).hits == 2)
        becomes(bench, "victim", "active")
        run = show(bench, "victim", "InvocationID")
        bench.recover(twice)
        assert show(bench, "victim", "InvocationID") == run, "it runs, and goes on"


def test_what_control_needs_is_refused(bench: Bench) -> None:
    """Before anything changes, in one line that names the field."""
    sshd = bench.sh("pgrep -o -x sshd")
    agent = main_pid(bench, "groundfault-agent")
    session = bench.sh("sed -n 's/^0:://p' /proc/self/cgroup")
    kernel = bench.sh("pgrep -o kthreadd")
    scopes: tuple[dict[str, object], ...] = (
        {"unit": "ssh"}, {"unit": "groundfault-agent"}, {"unit": "init.scope"}, {"cgroup": "/"},
        {"cgroup": "/system.slice"}, {"cgroup": "/user.slice"}, {"cgroup": session}, {"pid": 1}, {"tree": 1},
        {"pid": int(sshd)}, {"tree": int(sshd)}, {"pid": agent}, {"pid": int(kernel)}, {"unit": "nobody-knows"},
        {"container": "nobody"}, {"pid": 4194303}, {}, {"unit": "neighbour", "pid": 2},
    )  # fmt: skip
    for scope in scopes:
        for fault in ("process_kill", "process_pause"):
            said = refused(bench, fault, **scope)
            assert next(iter(scope), "scope") in said and "\n" not in said.strip(), (scope, said)
    assert "signal" in refused(bench, "process_kill", unit="neighbour", signal="SIGNOTHING")
    assert "perl, sleep" in refused(bench, "process_kill", unit="neighbour", process_name="nginx")
    assert "pause_s and run_s" in refused(bench, "process_pause", unit="neighbour", pause_s=1)
    assert "CONT" in refused(bench, "crash_loop", unit="neighbour", signal="CONT")
    assert bench.agent.list().injections == ()


@pytest.mark.thorough
def test_an_agent_that_is_killed(bench: Bench) -> None:
    """The last one here: its successor would have to probe the kernel before it could plant anything."""
    with services(bench, victim=(ALWAYS, COUNTS), other=("Restart=no", COUNTS)):
        bench.inject("process_pause", unit="victim")
        bench.inject("process_kill", unit="other")
        bench.sh("systemctl kill -s KILL --kill-whom=main groundfault-agent")
        until("the next agent has thawed it", lambda: bench.sh(INSIDE, check=False) == "", 60)
        becomes(bench, "other", "active")
        bench.lab.ready(bench.node)
        assert min(beats(bench, "victim", "other")) > 3
