"""Hardware faults on a real kernel, seen with tools that are not ours: dd, dmesg, ip, /sys."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from labctl.hardware.watchdog import is_awake
from tests.lab import LabUnderTest, ssh, ssh_argv
from tests.user import labctl, labctl_json, until

pytestmark = pytest.mark.vm

NODE, HEALTHY = "w2", "w1"
FILE = "/srv/data/victim"
MAKE = f"head -c 1048576 /dev/urandom > {FILE}; sync {FILE}; md5sum < {FILE}"
DROP = "echo 1 > /proc/sys/vm/drop_caches"
BUSY = Path(__file__).with_name("busy_disk.py")

TIMED = f"""
import subprocess, sys, time
argv = ["dd", "if={FILE}", "of=/dev/null", "iflag=direct", "bs=4096", f"count={{sys.argv[1]}}", "status=none"]
begin = time.monotonic()
subprocess.run(argv, check=True)
print(time.monotonic() - begin)
"""
"""Seconds that so many direct reads of the file take."""

SHOWS_AN_INJECTOR = {
    "dmsetup": "dmsetup ls; dmsetup table",
    "lsblk": "lsblk -o NAME,MAJ:MIN,SIZE,TYPE,MOUNTPOINTS,SERIAL",
    "bpftool": "bpftool prog show | grep -o 'name [^ ]*' | sort; bpftool link show | wc -l",
    "lsmod": "lsmod | cut -d' ' -f1 | sort",
    "processes": "ps -eo args | grep -v -e '^.kworker' -e '^ps' -e grep -e '^sort' -e sshd -e '^bash -c' | sort",
    "/sys": "find /sys -path /sys/fs/cgroup -prune -o -path /sys/kernel/slab -prune -o -print | sort",
}
"""What an operator would look at to find out who did it."""


class Guest:
    """Node w2, or another, through SSH."""

    def __init__(self, lab: LabUnderTest, name: str = NODE) -> None:
        self.lab, self.name = lab, name

    def sh(self, script: str, check: bool = True) -> str:
        return ssh(self.lab.node(self.name), script, check=check).stdout.strip()

    def fails(self, script: str) -> str:
        done = ssh(self.lab.node(self.name), script, check=False)
        assert done.returncode != 0, f"{script} went well"
        return done.stderr


@pytest.fixture(scope="module")
def guest(lab: LabUnderTest) -> Iterator[Guest]:
    lab.reset()
    yield Guest(lab)
    assert labctl_json("injections")["injections"] == []
    assert "no residue" in labctl("node", "residue", NODE).stdout
    lab.reset()


@pytest.fixture(autouse=True)
def nothing_stays(guest: Guest) -> Iterator[None]:
    yield
    labctl("recover", "--all")


def inject(fault: str, *options: str, name: str = NODE) -> dict[str, Any]:
    (one,) = labctl_json("inject", fault, "--node", name, "--for", "10m", *options)["injections"]
    assert one["state"] == "active" and one["evidence"]["armed"]
    return dict(one)


def recover(one: dict[str, Any]) -> dict[str, Any]:
    (over,) = labctl_json("recover", one["id"])["recovered"]
    assert over["residue"] == []
    return dict(over)


def signs(one: dict[str, Any]) -> dict[str, bool]:
    (now,) = labctl_json("evidence", one["id"])["injections"]
    return {sign["what"]: sign["seen"] for sign in now["evidence"]["signs"]}


def direct(offset: int, bs: int = 4096) -> str:
    return f"dd if={FILE} iflag=direct bs={bs} skip={offset // bs} count=1 status=none"


def zeros(offset: int, bs: int) -> str:
    """Rewrite a block of the file."""
    return f"dd if=/dev/zero of={FILE} oflag=direct bs={bs} seek={offset // bs} count=1 conv=notrunc status=none"


def place_of(one: dict[str, Any]) -> tuple[int, int, int]:
    """Byte in the file, first sector on the disk, and how many."""
    match = re.search(r"at byte (\d+): sector (\d+)\+(\d+)", one["target"])
    assert match
    return int(match[1]), int(match[2]), int(match[3])


def differences(one: Guest, other: Guest) -> set[tuple[str, str]]:
    """Lines of what an operator looks at that only one of two nodes has."""
    return {
        (what, line)
        for what, look in SHOWS_AN_INJECTOR.items()
        for line in {*one.sh(look).splitlines()} ^ {*other.sh(look).splitlines()}
    }


def test_a_file_whose_sectors_are_bad_on_the_disk_and_a_rewrite_that_heals(guest: Guest) -> None:
    healthy = Guest(guest.lab, HEALTHY)
    healthy.sh(MAKE)
    before = guest.sh(MAKE)
    differed = differences(guest, healthy)
    mark = guest.sh("dmesg | wc -l")
    one = inject("medium_error", "--file", FILE, "--seed", "4")
    offset, sector, count = place_of(one)
    assert count == 8 and one["evidence"]["hits"] >= 1
    assert "No data available" in guest.fails(f"{direct(offset)} > /dev/null")
    assert "Input/output error" in guest.fails(f"{DROP}; cat {FILE} > /dev/null")
    guest.sh(f"{direct(offset - 4096)} > /dev/null; {direct(offset + 4096)} > /dev/null")
    log = guest.sh(f"dmesg | tail -n +{int(mark) + 1}")
    assert "Sense Key : Medium Error" in log and "Add. Sense: Unrecovered read error" in log
    logged = [
        int(found) for found in re.findall(r"critical medium error, dev sda, sector (\d+) op 0x0:\(READ\)", log)
    ]
    assert sector in logged and all(found <= sector for found in logged), "where the request began"
    assert set(signs(one).values()) == {True}
    assert differences(guest, healthy) <= differed, "nothing that a node without the fault has not"
    guest.sh(zeros(offset, 512))
    assert guest.sh(f"{direct(offset, 512)} | tr -d '\\0' | wc -c") == "0", (
        "a sector alone is rewritten, and reads"
    )
    guest.fails(f"{direct(offset + 512, 512)} > /dev/null")
    guest.sh(zeros(offset, 4096))
    healed = guest.sh(f"{DROP}; md5sum < {FILE}")
    recover(one)
    assert guest.sh(f"{DROP}; md5sum < {FILE}") == healed != before


def test_sectors_that_stay_bad(guest: Guest) -> None:
    guest.sh(MAKE)
    one = inject("medium_error", "--file", FILE, "--permanent")
    offset, sector, _ = place_of(one)
    guest.sh(zeros(offset, 4096))
    guest.fails(f"{direct(offset)} > /dev/null")
    recover(one)
    assert guest.sh(f"{direct(offset)} | tr -d '\\0' | wc -c") == "0", "what was written is there"
    one = inject("latent_sector_error", "--range", f"{sector}+8")
    assert one["fault"] == "medium_error" and one["parameters"]["sector"] == [f"{sector}+8"]
    guest.fails(f"{direct(offset)} > /dev/null")
    recover(one)


@pytest.mark.thorough
def test_planted_and_healed_under_a_writer_that_compares(guest: Guest) -> None:
    guest.sh(f"cat > /tmp/busy_disk.py <<'END'\n{BUSY.read_text()}\nEND")
    guest.sh(MAKE)
    argv = ssh_argv(guest.lab.node(NODE), "python3 /tmp/busy_disk.py /srv/data/busy /tmp/end")
    load = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until("it writes", lambda: guest.sh("test -s /srv/data/busy && echo yes", check=False) == "yes")
        for seed in range(3):
            one = inject("medium_error", "--file", FILE, "--seed", str(seed))
            guest.fails(f"{direct(place_of(one)[0])} > /dev/null")
            recover(one)
    finally:
        guest.sh("touch /tmp/end")
        out, err = load.communicate(timeout=60)
        guest.sh("rm -f /tmp/end /srv/data/busy")
    assert load.returncode == 0, err
    assert int(out) > 20


def test_a_watchdog_heals_when_the_lease_ends_and_the_next_labctl_replaces_one_that_was_killed(
    guest: Guest,
) -> None:
    guest.sh(MAKE)
    directory = guest.lab.provider.directory
    labctl("inject", "nic_link_down", "--node", NODE, "--for", "6s", "--id", "short")
    until("it healed by itself", lambda: guest.sh("cat /sys/class/net/lan/carrier") == "1", 30)
    until("nobody has to watch", lambda: not is_awake(directory), 15)
    labctl("inject", "disk_degraded", "--node", NODE, "--for", "25s", "--id", "orphan")
    (watching,) = (p for p in psutil.process_iter(["cmdline"]) if _watches(p.info["cmdline"] or [], directory))
    watching.send_signal(signal.SIGKILL)
    until("it is dead", lambda: not is_awake(directory))
    labctl("injections")
    until("another one watches", lambda: is_awake(directory))
    until("healed", lambda: labctl_json("injections", "--all")["injections"][-1]["reason"] == "expired", 60)


def _watches(argv: list[str], directory: Path) -> bool:
    return "labctl.hardware.watchdog" in argv and str(directory) in argv


def test_a_slow_disk_and_one_that_stalls(guest: Guest) -> None:
    guest.sh(MAKE)
    guest.sh(f"cat > /tmp/timed.py <<'END'\n{TIMED}\nEND")
    timed = "python3 /tmp/timed.py %d"
    one = inject("disk_degraded", "--iops", "10")
    assert float(guest.sh(timed % 30)) > 2.0, "30 requests, 10 a second"
    assert signs(one)["milliseconds that requests took"]
    assert recover(one)["evidence"]["hits"] >= 30
    assert float(guest.sh(timed % 30)) < 1.5
    one = inject("disk_degraded", "--stall")
    pid = guest.sh(f"nohup dd if={FILE} of=/dev/null iflag=direct bs=4096 count=3 > /dev/null 2>&1 & echo $!")
    until("it waits for the disk", lambda: guest.sh(f"cut -d' ' -f3 /proc/{pid}/stat") == "D")
    recover(one)
    until("it goes on", lambda: guest.sh(f"ls -d /proc/{pid}", check=False) == "")
    one = inject("disk_degraded", "--schedule", "burst:3/3")
    for wanted in (0, 1):
        until(f"slow now: {wanted}", lambda wanted=wanted: _counters(one)["slow_now"] == wanted)  # type: ignore[misc]
    recover(one)
    assert "I/O error" not in guest.sh("dmesg | tail -3")


def _counters(one: dict[str, Any]) -> dict[str, int]:
    (now,) = labctl_json("evidence", one["id"])["injections"]
    return dict(now["evidence"]["counters"])


def test_a_disk_that_is_pulled_out_and_comes_back(guest: Guest) -> None:
    kept = guest.sh(MAKE)
    guest.sh("echo before-it-was-pulled > /dev/kmsg")
    one = inject("disk_removed")
    until("the guest sees it", lambda: "sda" not in guest.sh("ls /sys/block").split())
    guest.fails(f"{DROP}; cat {FILE}; echo x > /srv/data/late && sync -f /srv/data/late")
    over = recover(one)
    assert guest.sh(f"{DROP}; md5sum < {FILE}") == kept
    guest.sh("echo x > /srv/data/after && sync /srv/data/after && rm /srv/data/after")
    # What the guest could not even begin is not lost: that depends on what it had in its cache.
    since = "dmesg | sed -n '/before-it-was-pulled/,$p'"
    stopped = guest.sh(f"{since} | grep -c -E 'Aborting journal|filesystem read-only'", check=False)
    assert bool(over["data_lost"]) or stopped == "0", "the file system had to stop"
    assert set(signs(one).values()) == {True}
    guest.lab.reset()


def test_the_card_of_the_lab_network(guest: Guest) -> None:
    before = guest.sh("ip -br address show lan; ip -4 route show dev lan")
    peer = f"ping -c 1 -W 5 {guest.lab.node(HEALTHY).lab_addresses[0]}"
    guest.sh(peer)
    one = inject("nic_link_down")
    assert "NO-CARRIER" in guest.sh("ip link show lan")
    guest.fails(peer)
    assert set(signs(one).values()) == {True}
    recover(one)
    until("it is as before", lambda: guest.sh("ip -br address show lan; ip -4 route show dev lan") == before)
    guest.sh(peer)
    one = inject("nic_removed")
    assert "does not exist" in guest.fails("ip link show lan")
    recover(one)
    until(
        "it is back", lambda: guest.sh("ip -br address show lan; ip -4 route show dev lan", check=False) == before
    )
    guest.sh(peer)
    assert set(signs(one).values()) == {True}


def test_a_bad_cable(guest: Guest) -> None:
    near, far = (guest.lab.node(name).lab_addresses[0] for name in (HEALTHY, "w3"))

    def pinged(address: str, *more: str, count: int = 200) -> int:
        """How many of so many were answered."""
        said = guest.sh(f"ping -q -i 0.02 -W 2 -c {count} {' '.join(more)} {address}", check=False)
        return int(re.search(r"(\d+) received", said)[1])  # type: ignore[index]

    before = guest.sh("tc qdisc show; nft list ruleset; ip link show lan; ethtool -S lan 2>/dev/null | wc -l")
    one = inject("link_degraded", "--loss-percent", "30", "--direction", "out", "--peers", HEALTHY)
    assert 110 <= pinged(near) <= 168 and pinged(far) == 200, "of 200; six standard deviations around 140"
    assert (
        guest.sh("tc qdisc show; nft list ruleset; ip link show lan; ethtool -S lan 2>/dev/null | wc -l") == before
    )
    (seen,) = labctl_json("evidence", one["id"])["injections"]
    assert 32 <= seen["evidence"]["counters"]["lost"] == seen["evidence"]["hits"]
    recover(one)
    assert pinged(near) == 200
    one = inject("link_degraded", "--loss-percent", "0", "--mtu", "1000", "--delay-ms", "80")
    assert pinged(near, "-s", "972", count=5) == 5 and pinged(near, "-s", "973", count=5) == 0
    quickest = float(guest.sh(f"ping -q -c 5 {far}").rpartition("= ")[2].split("/")[0])
    assert 160 <= quickest < 320, "there and back"
    (wire,) = (p for p in psutil.process_iter() if f"{NODE}.gf-{one['id']}" in " ".join(_argv(p)))
    wire.kill()
    until("a wire that has ended is taken away", lambda: pinged(near, "-s", "1200", count=3) == 3, 60)
    (seen,) = labctl_json("evidence", one["id"])["injections"]
    assert not seen["evidence"]["armed"]
    recover(one)


def _argv(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_frozen_node_and_an_interrupt_nobody_knows(guest: Guest) -> None:
    one = inject("node_frozen")
    with pytest.raises(subprocess.TimeoutExpired):
        ssh(guest.lab.node(NODE), "true", timeout=5)
    held = next(node for node in labctl_json("status")["nodes"] if node["name"] == NODE)
    assert held["problem"] == f"node_frozen, injection {one['id']}"
    recover(one)
    assert abs(next(n for n in labctl_json("status")["nodes"] if n["name"] == NODE)["clock_offset_s"]) < 1
    one = inject("nmi")
    until("it is logged", lambda: "NMI received for unknown reason" in guest.sh("dmesg | tail -20"))
    assert set(signs(one).values()) == {True}


def test_a_restore_with_faults_standing(guest: Guest) -> None:
    guest.sh(MAKE)
    inject("medium_error", "--file", FILE)
    inject("node_frozen")
    guest.lab.reset()
    assert guest.fails(f"cat {FILE}"), "the snapshot has no such file"
    over = {one["fault"]: one for one in labctl_json("injections", "--all")["injections"][-2:]}
    assert {one["state"] for one in over.values()} == {"recovered"} and over.keys() == {
        "medium_error",
        "node_frozen",
    }
    assert {one["reason"] for one in over.values()} <= {"reset", "power lost"}, (
        "the lab, or its watchdog before it"
    )


def test_errors_of_the_pcie_port_and_what_this_qemu_cannot_say(guest: Guest) -> None:
    one = inject("pcie_errors")
    assert "severity=Uncorrectable (Non-Fatal)" in guest.sh("dmesg | tail -20")
    assert set(signs(one).values()) == {True}
    recover(one)
    refused = labctl("inject", "pcie_errors", "--node", NODE, "--error", "bad_tlp", status=None)
    assert refused.returncode in (0, 3), "QEMU 7.2 delivers no corrected errors, newer ones do"
    labctl("recover", "--all")


def test_a_corrected_memory_error_is_logged_when_the_kernel_looks(guest: Guest) -> None:
    interval = "/sys/devices/system/machinecheck/machinecheck0/check_interval"
    guest.sh(f"echo 1 > {interval}")  # before: writing it clears the banks, and says nothing of what was there
    one = inject("memory_corrected_errors")
    until("it is logged", lambda: "Bank 9: 9c000040" in guest.sh("dmesg | tail -20"))
    assert set(signs(one).values()) == {True}
    recover(one)
    guest.sh(f"echo 300 > {interval}")


@pytest.mark.thorough
def test_power_lost_with_a_bad_disk_and_a_fault_of_the_agent(guest: Guest) -> None:
    """The newest data are in the overlay then, and have to be in the disk before the machine boots."""
    guest.sh(MAKE)
    inject("latent_sector_error", "--backend", "dm", "--range", "2048+8", "--id", "above")
    bad = inject("medium_error", "--file", FILE)
    guest.sh("echo flushed > /srv/data/flushed; sync")
    one = inject("power_loss")
    assert next(n for n in labctl_json("status")["nodes"] if n["name"] == NODE)["running"] is False
    recover(one)
    assert set(signs(one).values()) == {True}
    assert guest.sh("cat /srv/data/flushed") == "flushed"
    guest.sh(f"{DROP}; cat {FILE} > /dev/null")
    over = {o["id"]: o["reason"] for o in labctl_json("injections", "--all")["injections"]}
    assert over[bad["id"]] == "power lost" and over["above"] == "restart"


def test_an_uncorrected_memory_error_ends_the_kernel(guest: Guest) -> None:
    one = inject("memory_uncorrected_error")
    assert one["evidence"]["counters"]["panicked"] == 1
    assert any("Fatal local machine check" in line for line in one["evidence"]["log"])
    recover(one)
    assert guest.sh("cat /proc/uptime")
