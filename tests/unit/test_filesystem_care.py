"""What checkers say, what is remembered of a repair, which disk came back: all of care but the kernel."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from node_agent.errors import Refusal
from node_agent.host import CommandError, DmTarget, fsck, tool, units
from node_agent.host.filesystem import FileSystems, missing
from node_agent.host.mounting import Mounted
from node_agent.returned_disk import repair_disk
from node_agent.steps import load_step
from node_agent.steps.filesystem_care import FilesystemCare
from tests.contract.filesystems import MOUNTINFO
from tests.contract.simulated import Kernel, Killed, SimulatedHost, fresh_kernel

CARE = FilesystemCare(name="groundfault-f-1", device="data", mount="/srv/data")
STOPPED = {"stopped": "ext4 at /srv/data has stopped: Read-only file system"}

# What e2fsck 1.47.2 printed on a real disk whose journal had been aborted.
AFTER_AN_ABORT = """e2fsck 1.47.2 (1-Jan-2025)
data: recovering journal
Pass 1: Checking inodes, blocks, and sizes
Deleted inode 19 has zero dtime.  Fix? yes

Pass 2: Checking directory structure
Pass 5: Checking group summary information
Block bitmap differences:  -34304
Fix? yes

Free blocks count wrong for group #1 (31678, counted=31679).
Fix? yes

Orphan file (inode 12) block 0 is not clean.
Clear? yes


data: ***** FILE SYSTEM WAS MODIFIED *****
data: 18/32768 files (0.0% non-contiguous), 7410/131072 blocks
"""
DAMAGED = """Pass 1: Checking inodes, blocks, and sizes
Inode 15 has an invalid extent node (blk 34304, lblk 0)
Clear? yes

Inode 15, i_blocks is 16, should be 0.  Fix? yes

Pass 2: Checking directory structure
Entry 'b.bin' in /seed (13) has deleted/unused inode 16.  Clear? yes

Pass 3: Checking directory connectivity
Pass 4: Checking reference counts
Unattached inode 17
Connect to /lost+found? yes

Inode 17 ref count is 2, should be 1.  Fix? yes
"""


def test_what_e2fsck_puts_right_costs_nothing() -> None:
    found = fsck.read_e2fsck(AFTER_AN_ABORT)
    assert found.lost == ()
    assert found.done == (
        "journal replayed",
        "Deleted inode 19 has zero dtime. Fix: yes",
        "Block bitmap differences:  -34304 Fix: yes",
        "Free blocks count wrong for group #1 (31678, counted=31679). Fix: yes",
        "Orphan file (inode 12) block 0 is not clean. Clear: yes",
    )


def test_what_e2fsck_takes_away_is_lost() -> None:
    assert fsck.read_e2fsck(DAMAGED).lost == (
        "Inode 15 has an invalid extent node (blk 34304, lblk 0) Clear: yes",
        "Entry 'b.bin' in /seed (13) has deleted/unused inode 16. Clear: yes",
        "Unattached inode 17 Connect to /lost+found: yes",
    )


def test_what_xfs_repair_takes_away_is_lost() -> None:
    text = (
        "Phase 3 - for each AG...\n        - scan and clear agi unlinked lists...\nbad CRC for inode 133\n"
        "cleared inode 133\nPhase 6 - check inode connectivity...\n"
        "disconnected inode 134, moving to lost+found\ndone\n"
    )
    assert fsck.read_xfs_repair(text).lost == ("cleared inode 133", "disconnected inode 134, moving to lost+found")


def test_a_long_list_says_how_much_more_there_is() -> None:
    lines = fsck.shortened(f"file {n}" for n in (*range(30), *range(30)))
    assert (len(lines), lines[0], lines[-1]) == (21, "file 0", "and 10 more")


def test_what_a_repair_costs_by_comparison() -> None:
    before = {"/d/gone": 5, "/d/short": 100, "/d/same": 7, "/d/grown": 1}
    after = {"/d/short": 60, "/d/same": 7, "/d/grown": 2, "/d/lost+found/#14": 9, "/d/new": 1}
    assert missing(before, after) == [
        "/d/gone (5 bytes)",
        "/d/short has 60 bytes, it had 100",
        "the name of what is now /d/lost+found/#14 (9 bytes)",
    ]
    assert missing({}, after) == [], "what could not be seen before tells nothing"


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/postgresql@17-main.service\n", "postgresql@17-main.service"),
        ("0::/system.slice/db.service/worker\n", "db.service"),
        ("5:cpu:/x\n1:name=systemd:/system.slice/old.service\n", "old.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/editor.service\n", ""),
        ("0::/system.slice/docker-9f.scope\n", ""),
        ("0::/system.slice/groundfault-agent.service\n", ""),
        ("0::/system.slice/ssh.service\n", ""),
        ("0::/\n", ""),
    ],
)
def test_which_service_a_process_belongs_to(tmp_path: Path, cgroup: str, unit: str) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    assert units.unit_of(tmp_path) == unit


def test_a_repair_is_remembered_by_the_next_agent(tmp_path: Path) -> None:
    mounted = Mounted("/dev/mapper/data", "/srv/data", "ext4", "rw,noatime", "252:0")
    first = FileSystems(tmp_path / "repairs")
    assert (first.begun("tag-1"), first.lost("tag-1")) == (None, ())
    first.note("tag-1", wanted=mounted.__dict__, units=["db.service"])
    first.note("tag-1", lost=["one file"])
    assert FileSystems(tmp_path / "repairs").begun("tag-1") == mounted
    first.note("tag-1", wanted=None, units=[])
    again = FileSystems(tmp_path / "repairs")
    assert (again.begun("tag-1"), again.lost("tag-1")) == (None, ("one file",))
    for number in range(150):
        again.note(f"other-{number}", lost=["x"])
    assert len(list((tmp_path / "repairs").iterdir())) <= 101, "old ones go"


# -- the step ------------------------------------------------------------------------------------------------


def test_a_file_system_that_is_well_is_not_touched() -> None:
    host = SimulatedHost(fresh_kernel())
    undo = CARE.capture(host)
    assert (CARE.heal(host, undo), CARE.leftovers(host, undo), host.changes) == ((), (), 0)
    assert load_step(CARE.model_dump()) == CARE


def test_one_that_stopped_is_healed_and_its_losses_are_told_each_time() -> None:
    host = SimulatedHost(fresh_kernel())
    undo = CARE.capture(host)
    host.kernel.ailments["/srv/data"] = dict(STOPPED)
    assert CARE.leftovers(host, undo) == tuple(STOPPED.values())
    lost = CARE.heal(host, undo)
    assert lost == ("/srv/data: what was not on the disk yet",)
    assert (CARE.leftovers(host, undo), CARE.heal(host, undo)) == ((), lost)
    assert CARE.heal(SimulatedHost(host.kernel), undo) == lost, "another agent tells it, too"


def test_what_was_wrong_before_is_not_ours() -> None:
    host = SimulatedHost(fresh_kernel())
    host.kernel.ailments["/srv/data"] = {"errors": "ext4 has counted 3 errors"}
    undo = CARE.capture(host)
    assert (CARE.heal(host, undo), CARE.leftovers(host, undo), host.changes) == ((), (), 0)
    host.kernel.ailments["/srv/data"] |= STOPPED
    assert CARE.leftovers(host, undo) == tuple(STOPPED.values())


@pytest.mark.parametrize("die_at", [1, 2])
def test_an_agent_killed_in_the_middle_is_followed_by_one_that_finishes(die_at: int) -> None:
    kernel = fresh_kernel()
    undo = CARE.capture(SimulatedHost(kernel))
    kernel.ailments["/srv/data"] = dict(STOPPED)
    with pytest.raises(Killed):
        CARE.heal(SimulatedHost(kernel, die_at), undo)
    host = SimulatedHost(kernel)
    assert CARE.leftovers(host, undo) != ()
    assert CARE.heal(host, undo) == ("/srv/data: what was not on the disk yet",)
    assert CARE.leftovers(host, undo) == ()


def test_one_that_is_not_mounted_any_more_is_mounted_as_it_was() -> None:
    """After a reboot that could not mount it, or somebody unmounted it."""
    kernel = fresh_kernel()
    undo = CARE.capture(SimulatedHost(kernel))
    unmount(kernel)
    host = SimulatedHost(kernel)
    assert CARE.leftovers(host, undo) == ("/srv/data is not mounted, it was",)
    assert (CARE.heal(host, undo), CARE.leftovers(host, undo)) == ((), ())
    assert host.filesystems.mounted("/srv/data") == Mounted(**undo["mounted"])


def test_another_injection_on_the_disk_heals_at_its_own_end() -> None:
    kernel = fresh_kernel()
    host = SimulatedHost(kernel)
    first = CARE.capture(host)
    sectors = kernel.dm["data"][1][0].length
    kernel.dm["groundfault-g-2-gate"] = ("252:9", (DmTarget(0, sectors, "error", ""),))
    plain, kernel.dm["data"] = kernel.dm["data"], ("252:0", (DmTarget(0, sectors, "linear", "252:9 0"),))
    kernel.ailments["/srv/data"] = dict(STOPPED)
    second = FilesystemCare(name="groundfault-g-2", device="data", mount="/srv/data")
    undo = second.capture(host)
    assert undo["ill"] == [], "the first has promised that it is well, the last one keeps it"
    assert (CARE.heal(host, first), CARE.leftovers(host, first), host.changes) == ((), (), 0)
    kernel.dm["data"] = plain
    assert second.heal(host, undo) == ("/srv/data: what was not on the disk yet",)


def test_without_its_record_it_heals_what_is_mounted() -> None:
    host = SimulatedHost(fresh_kernel())
    host.kernel.ailments["/srv/data"] = dict(STOPPED)
    assert CARE.leftovers(host, None) == tuple(STOPPED.values())
    assert CARE.heal(host, None) == ("/srv/data: what was not on the disk yet",)


def test_a_disk_that_is_gone_needs_no_care() -> None:
    kernel = fresh_kernel()
    undo = CARE.capture(SimulatedHost(kernel))
    unmount(kernel)
    del kernel.dm["data"]
    host = SimulatedHost(kernel)
    assert (CARE.heal(host, undo), CARE.leftovers(host, undo)) == ((), ())


def unmount(kernel: Kernel) -> None:
    lines = kernel.texts[MOUNTINFO].splitlines(keepends=True)
    kernel.texts[MOUNTINFO] = "".join(line for line in lines if "/srv/data" not in line)


# -- a disk that came back -----------------------------------------------------------------------------------


def pulled(kernel: Kernel, back: bool) -> SimulatedHost:
    """The disk of `data`, 8:16, is gone; with `back` it is there again as 8:32, which is sdb here."""
    kernel.texts["/sys/dev/block/254:0"] = ""
    if back:
        kernel.texts["/sys/dev/block/8:32"] = ""
    kernel.ailments["/srv/data"] = dict(STOPPED)
    host = SimulatedHost(kernel)
    names = {"/sys/dev/block/8:32": "/sys/devices/pci/block/sdb", "/sys/dev/block/254:0": "/sys/devices/block/vda"}
    host.realpath = lambda path: names.get(path, path)  # type: ignore[method-assign]
    return host


@pytest.mark.parametrize("wanted", ["", "data", "/srv/data", "/srv/data/", "/dev/mapper/data"])
def test_the_table_is_led_to_the_disk_that_came_back(wanted: str) -> None:
    kernel = fresh_kernel()
    host = pulled(kernel, back=True)
    repair = repair_disk(host, "disk-x", wanted)
    assert repair.done == ("the table of data leads to 8:32 instead of 8:16, which is gone", "checked /srv/data")
    assert repair.lost == ("/srv/data: what was not on the disk yet",)
    assert kernel.dm["data"][1][0].args == "8:32 0"
    again = repair_disk(host, "disk-x", wanted)
    assert (again.done, again.lost) == ((), repair.lost)
    assert repair_disk(host, "disk-y", wanted).lost == (), "another one has lost nothing"


@pytest.mark.parametrize("wanted", ["", "data"])
def test_a_disk_that_somebody_unmounted_while_it_was_away(wanted: str) -> None:
    kernel = fresh_kernel()
    host = pulled(kernel, back=True)
    uuid = host.filesystems.identity("/srv/data")
    number = kernel.dm["data"][0]
    unmount(kernel)
    del kernel.ailments["/srv/data"]
    kernel.texts[f"/run/udev/data/b{number}"] = f"N:dm-0\nE:ID_FS_UUID={uuid}\n"
    repair = repair_disk(host, "disk-x", wanted)
    assert repair.done == ("the table of data leads to 8:32 instead of 8:16, which is gone",)
    assert (kernel.dm["data"][1][0].args, repair.lost) == ("8:32 0", ())


def test_while_it_is_away_nothing_is_changed() -> None:
    host = pulled(fresh_kernel(), back=False)
    with pytest.raises(Refusal, match="no unused disk has the file system"):
        repair_disk(host, "disk-x", "data")
    assert host.changes == 0


def test_a_disk_in_use_or_too_small_is_another_one() -> None:
    kernel = fresh_kernel()
    host = pulled(kernel, back=True)
    kernel.texts["/sys/devices/pci/block/sdb/holders/dm-7"] = ""
    with pytest.raises(Refusal, match="no unused disk"):
        repair_disk(host, "disk-x", "data")


def test_layers_of_an_injection_are_led_to_it_too_and_its_end_heals() -> None:
    kernel = fresh_kernel()
    sectors = kernel.dm["data"][1][0].length
    kernel.dm["groundfault-f-1-below"] = ("252:9", kernel.dm["data"][1])
    kernel.dm["data"] = ("252:0", (DmTarget(0, sectors, "linear", "252:9 0"),))
    host = pulled(kernel, back=True)
    repair = repair_disk(host, "disk-x", "data")
    assert repair.done == (
        "the table of groundfault-f-1-below leads to 8:32 instead of 8:16, which is gone",
        "an injection stands on data; its end looks after the file system",
    )
    assert kernel.ailments["/srv/data"] == STOPPED


def test_a_disk_that_is_none() -> None:
    with pytest.raises(Refusal, match="'root' is no data disk"):
        repair_disk(SimulatedHost(fresh_kernel()), "disk-x", "root")


def test_a_program_that_takes_long_keeps_systemd_from_thinking_the_agent_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    monkeypatch.setattr(tool, "_BEAT_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(address))
        heard.settimeout(10)
        ended = tool.run_tool(("sleep", "1000"), 0.3)
        assert heard.recv(200) == b"WATCHDOG=1\nEXTEND_TIMEOUT_USEC=100000"
    assert (ended.status, ended.text) == (None, "")
    with pytest.raises(CommandError, match="sleep 1000 did not end in time"):
        ended.checked()


def test_a_program_and_all_that_it_says() -> None:
    ended = tool.run_tool(("sh", "-c", "echo out; echo err >&2; exit 3"), 10)
    assert (ended.status, ended.text) == (3, "out\nerr")
    with pytest.raises(CommandError, match="status 3: out / err"):
        ended.checked()
