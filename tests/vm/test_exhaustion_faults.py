"""pids_exhausted, fds_exhausted_system and shm_full on a real kernel, and what is refused of faults of limits."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.errors import LabctlError
from tests.lab import LabUnderTest, ssh_argv
from tests.user import until
from tests.vm.disks import Bench, disk_bench
from tests.vm.services import GROUPS, services, show

pytestmark = pytest.mark.vm

PROGRAM = "/run/exhausting.py"
FORKS = (
    'exec perl -e \'open F, ">", "/run/$0.said"; F->autoflush; while (1) { if (-e "/run/$0.go") { my $p = fork; '
    'if (!defined $p) { print F "refused: $!\\n" } elsif (!$p) { exec "/bin/true" } else { waitpid $p, 0; '
    'print F "well\\n" } } select undef, undef, undef, 0.1 }\''
)
"""A service that starts a process ten times a second once it may, and says how that went."""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w3") as one:
        text = Path(__file__).with_name("exhausting.py").read_text()
        one.sh(f"cat > {PROGRAM} <<'END'\n{text}\nEND\n")
        with services(one, neighbour=("", FORKS)):
            one.sh("touch /run/neighbour.go")
            yield one


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    before = show(bench, "neighbour", "MainPID", "NRestarts")
    bench.mine.clear()
    yield
    bench.recover_all()
    until("nothing is left", lambda: bench.agent.residue() == (), 30)
    assert show(bench, "neighbour", "MainPID", "NRestarts") == before


def says(bench: Bench, name: str) -> set[str]:
    """All that a service has said within a second from now."""
    return set(bench.sh(f": > /run/{name}.said; sleep 1.2; tr -d '\\0' < /run/{name}.said").splitlines())


def test_a_unit_starts_no_more_processes(bench: Bench) -> None:
    group = f"{GROUPS}/victim.service"
    with services(bench, victim=("TasksMax=500", FORKS)):
        until("it runs", lambda: bench.sh("ls /run/victim.said", check=False) != "", 30)
        mark = bench.log_mark()
        view = bench.inject("pids_exhausted", unit="victim")
        bench.sh("touch /run/victim.go")
        until("it is refused", lambda: says(bench, "victim") == {"refused: Resource temporarily unavailable"}, 20)
        assert says(bench, "neighbour") == {"well"}
        assert bench.logged(mark, "fork rejected by pids controller in /system.slice/victim.service")
        refused = int(bench.sh(f"sed -n 's/^max //p' {group}/pids.events"))
        assert bench.evidence(view).hits >= refused > 0 and bench.seen(view) == [True, True]
        limit = bench.sh(f"cat {group}/pids.max")
        bench.sh("systemctl restart victim")
        until("the new one has the limit", lambda: bench.sh(f"cat {group}/pids.max", check=False) == limit, 20)
        bench.recover(view)
        assert bench.sh(f"cat {group}/pids.max") == "500" and says(bench, "victim") == {"well"}


def test_the_node_starts_no_more_processes_and_heals_by_itself(bench: Bench) -> None:
    """Somebody takes the reserve, too: then nobody can log in, and the end of the lease needs no new process."""
    bench.mine.append("full-1")
    before = bench.sh("cat /proc/sys/kernel/threads-max")
    view = bench.agent.apply("full-1", "pids_exhausted", {"reserve": 64}, 600)
    assert view.evidence is not None and view.evidence.counters["held"] > 200
    answer, count = bench.sh(f"python3 {PROGRAM} forks 0").split()
    assert answer == "EAGAIN" and 30 <= int(count) <= 64, "the reserve, and no more"
    bench.agent.extend("full-1", 25)
    taking = subprocess.Popen(
        bench.through(ssh_argv(bench.node, f"python3 {PROGRAM} forks 60")), stdout=subprocess.PIPE, text=True
    )
    assert taking.stdout is not None and taking.stdout.readline().startswith("EAGAIN")
    until("the lease has ended it", lambda: is_over(bench, "full-1"), 90)
    assert bench.sh("cat /proc/sys/kernel/threads-max") == before
    assert bench.sh(f"python3 {PROGRAM} forks 0").startswith("none")
    taking.kill()
    taking.wait()


def is_over(bench: Bench, name: str) -> bool:
    """Whether an injection has ended; the agent may be short of threads itself."""
    try:
        (now,) = bench.agent.list(ids=(name,), ended=True).injections
    except LabctlError:
        return False
    return (now.state, now.reason) == ("recovered", "expired")


def test_the_system_opens_no_more_files_but_for_root(bench: Bench) -> None:
    mark = bench.log_mark()
    before = bench.sh("cat /proc/sys/fs/file-max")
    assert bench.sh(f"python3 {PROGRAM} opens") == "well well"
    view = bench.inject("fds_exhausted_system")
    assert bench.sh(f"python3 {PROGRAM} opens") == "ENFILE ENFILE"
    assert bench.sh("cat /etc/hostname") == bench.node.name, "root goes on"
    used, _, most = bench.sh("cat /proc/sys/fs/file-nr").split()
    assert int(used) >= int(most) - 8 and bench.evidence(view).counters["held"] > 800
    assert bench.logged(mark, "VFS: file-max limit .* reached") and bench.seen(view) == [True]
    bench.recover(view)
    assert bench.sh(f"python3 {PROGRAM} opens") == "well well"
    assert bench.sh("cat /proc/sys/fs/file-max") == before


def test_shared_memory_is_full(bench: Bench) -> None:
    other = "head -c 8192 /dev/zero > /tmp/tmpfs-of-others && rm /tmp/tmpfs-of-others && echo well"
    write = "head -c 8192 /dev/zero > /dev/shm/segment"
    view = bench.inject("shm_full")
    assert "No space left on device" in bench.says(write), "root is refused as well"
    assert bench.sh("df --output=avail /dev/shm | tail -1") == "0"
    assert bench.sh("stat -c %U /dev/shm/app-segment.*") == "nobody"
    assert bench.sh(other) == "well"
    assert bench.evidence(view).armed
    bench.recover(view)
    assert bench.sh(f"{write} && rm /dev/shm/segment && ls /dev/shm") == ""


REFUSED: tuple[tuple[str, dict[str, object], str], ...] = (
    ("memory_pressure", {"unit": "ssh"}, "never a target"),
    ("memory_pressure", {"available_mib": 32}, "greater than or equal to 64"),
    ("memory_pressure", {"available_mib": 4000}, "are available as it is"),
    ("memory_pressure", {"cgroup": "/system.slice"}, "holds the agent"),
    ("oom_kill", {}, "nobody is killed by chance"),
    ("oom_kill", {"pid": 1}, "pid 1"),
    ("oom_kill", {"unit": "groundfault-agent"}, "never a target"),
    ("memory_poison", {"pid": 1, "accept_data_loss": True}, "pid 1"),
    ("memory_poison", {"unit": "neighbour"}, "accept_data_loss"),
    ("memory_poison", {"file": "/usr/lib/os-release/"}, "no plain file"),
    ("swap_thrash", {"working_set_mib": 2000}, "has room for"),
    ("swap_thrash", {"resident_mib": 96}, "less than working_set_mib"),
    ("pids_exhausted", {"leak": 30000}, "threads already"),
    ("shm_full", {"mount": "/run"}, "the system itself lives"),
    ("shm_full", {"mount": "/srv/data"}, "no tmpfs"),
    ("shm_full", {"owner": "root"}, "somebody else"),
)


def test_refused(bench: Bench) -> None:
    for fault, parameters, words in REFUSED:
        with pytest.raises(LabctlError) as refusal:
            bench.agent.apply("refused-1", fault, parameters, 60)
        assert words in f"{refusal.value} {getattr(refusal.value, 'hint', '')}", (fault, parameters)
