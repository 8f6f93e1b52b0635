"""Putting a disk under device mapper and back, on a simulated machine: refusals, repetition, and every cut."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node_agent.baseline import Baseline
from node_agent.errors import AgentError, ApplyError, ConflictError, Refusal, StorageError
from node_agent.host import LoopInfo
from node_agent.prepare import unit
from node_agent.prepare.disks import Preparer, View, bring_up_all
from node_agent.prepare.model import Request
from node_agent.prepare.records import Records
from node_agent.residue import compare, look
from tests.contract.simulated import Kernel, Killed, SimFile
from tests.unit.cli_world import World
from tests.unit.spare_disk import DISK, LINK, SECTORS, SpareHost, machine

BLOCK = "/sys/class/block"
FILE = "/var/lib/groundfault/spare.img"
ON_DISK = {"name": "spare", "device": DISK, "format": "ext4", "mount": "/srv/spare"}
ON_FILE = {"name": "spare", "size_mib": 64}


def preparer(
    kernel: Kernel, state: Path, die_at: int = 0, fails: str = "", live: tuple[str, ...] = ()
) -> Preparer:
    return Preparer(SpareHost(kernel, die_at, fails), state, lambda: live, holders=lambda number: ())


def do(kernel: Kernel, state: Path, **request: Any) -> tuple[tuple[View, ...], bool]:
    return preparer(kernel, state).do(Request(**request))


def undo(kernel: Kernel, state: Path) -> bool:
    return do(kernel, state, name="spare", undo=True)[1]


def shape(kernel: Kernel, state: Path) -> dict[str, Any]:
    """All that is compared: but not numbers that count up."""
    folder = state / "disks"
    records = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    texts = {k: v for k, v in kernel.texts.items() if not k.startswith("/proc/self/mount")}
    mounts = [line.split()[0:2] for line in kernel.texts["/proc/self/mounts"].splitlines()]
    tables = {name: table for name, (_, table) in kernel.dm.items()}
    return {"texts": texts, "mounts": mounts, "dm": tables, "loops": set(kernel.loops), "files": set(kernel.files),
            "records": records}  # fmt: skip


def test_a_disk_comes_and_goes(tmp_path: Path) -> None:
    kernel = machine()
    before = shape(kernel, tmp_path)
    (view,), changed = do(kernel, tmp_path, **ON_DISK)
    assert (changed, view.device, view.problem, view.record.source) == (True, DISK, "", LINK)
    (line,) = kernel.dm["spare"][1]
    assert (line.start, line.length, line.kind, line.args) == (0, SECTORS, "linear", "8:16 0")
    assert "/dev/mapper/spare /srv/spare ext4" in kernel.texts["/proc/self/mounts"]
    assert "RequiresMountsFor=/opt/groundfault /srv /var/lib/groundfault\n" in kernel.texts[unit.FILE]
    again, changed = do(kernel, tmp_path, **ON_DISK)
    assert (again, changed) == ((view,), False)
    assert do(kernel, tmp_path) == ((view,), False), "asking changes nothing"
    assert undo(kernel, tmp_path)
    assert not undo(kernel, tmp_path), "twice is once"
    after = shape(kernel, tmp_path)
    assert after["texts"].pop(f"marks:{DISK}") == "ext4", "the disk keeps what is on it"
    assert after == before


def test_a_file_comes_and_goes(tmp_path: Path) -> None:
    kernel = machine()
    before = shape(kernel, tmp_path)
    (view,), changed = do(kernel, tmp_path, **ON_FILE)
    assert (changed, view.device, view.problem) == (True, "/dev/loop0", "")
    assert kernel.files[FILE].size == 64 << 20
    assert "/dev/mapper/spare /srv/spare ext4" in kernel.texts["/proc/self/mounts"]
    assert do(kernel, tmp_path, **ON_FILE)[1] is False
    assert undo(kernel, tmp_path)
    after = shape(kernel, tmp_path)
    after["texts"].pop("marks:file")
    assert after == before


@pytest.mark.parametrize("request_", [ON_DISK, ON_FILE], ids=["disk", "file"])
def test_killed_anywhere_the_next_call_ends_it(request_: dict[str, Any], tmp_path: Path) -> None:
    clean, whole = machine(), machine()
    preparer(whole, tmp_path / "whole").do(Request(**request_))
    wanted, before = shape(whole, tmp_path / "whole"), shape(clean, tmp_path / "none")
    for number in range(1, 100):
        kernel, state = machine(), tmp_path / str(number)
        try:
            preparer(kernel, state, die_at=number).do(Request(**request_))
        except Killed:
            pass
        else:
            assert number > 6
            break
        back, back_state = copy.deepcopy(kernel), tmp_path / f"{number}-back"
        if (state / "disks").exists():
            (back_state / "disks").mkdir(parents=True)
            for file in (state / "disks").iterdir():
                (back_state / "disks" / file.name).write_bytes(file.read_bytes())
        do(kernel, state, **request_)
        assert shape(kernel, state) == wanted, f"going on after change {number}"
        undo(back, back_state)
        found = shape(back, back_state)
        for key in (f"marks:{DISK}", "marks:file"):
            found["texts"].pop(key, None)
        assert found == before, f"undoing after change {number}"


@pytest.mark.parametrize("request_", [ON_DISK, ON_FILE], ids=["disk", "file"])
def test_an_undo_killed_anywhere_is_ended_by_the_next(request_: dict[str, Any], tmp_path: Path) -> None:
    before = shape(machine(), tmp_path / "none")
    for number in range(1, 100):
        kernel, state = machine(), tmp_path / str(number)
        do(kernel, state, **request_)
        try:
            preparer(kernel, state, die_at=number).do(Request(name="spare", undo=True))
        except Killed:
            undo(kernel, state)
            found = shape(kernel, state)
            for key in (f"marks:{DISK}", "marks:file"):
                found["texts"].pop(key, None)
            assert found == before, f"undo killed before change {number}"
        else:
            assert number > 4
            return


@pytest.mark.parametrize("program", ["mkfs.ext4", "mount", "ln", "fallocate"])
def test_what_fails_is_taken_back(program: str, tmp_path: Path) -> None:
    kernel = machine()
    before = shape(kernel, tmp_path)
    with pytest.raises(ApplyError, match="it does not work; everything done so far was undone"):
        host = SpareHost(kernel, fails=program)
        failing = Preparer(host, tmp_path, lambda: (), holders=lambda number: ())
        original = host.run

        def once(argv: tuple[str, ...], *, timeout_s: float = 30.0) -> str:
            try:
                return original(argv, timeout_s=timeout_s)
            finally:
                if argv[0] == program:
                    host.fails = ""

        host.run = once  # type: ignore[method-assign]
        failing.do(Request(**ON_FILE))
    found = shape(kernel, tmp_path)
    found["texts"].pop("marks:file", None)
    assert found == before


def text(path: str, value: str) -> Callable[[Kernel], None]:
    return lambda kernel: kernel.texts.__setitem__(path, value)


def mounted(number: str, target: str) -> Callable[[Kernel], None]:
    line = f"7 1 {number} / {target} rw - ext4 /dev/x rw\n"
    return lambda kernel: kernel.texts.__setitem__(
        "/proc/self/mountinfo", kernel.texts["/proc/self/mountinfo"] + line
    )


def both(*acts: Callable[[Kernel], None]) -> Callable[[Kernel], None]:
    def all_of(kernel: Kernel) -> None:
        for act in acts:
            act(kernel)

    return all_of


PART = both(text(f"{BLOCK}/sdb/sdb1/partition", "1"), text(f"{BLOCK}/sdb/sdb1/dev", "8:17"))
REFUSALS: list[tuple[str, Callable[[Kernel], None], str, str]] = [
    ("/dev/sdx", lambda k: None, "does not exist", "this node has: /dev/sdb, /dev/vda"),
    ("/dev/vda", lambda k: None, "holds the root file system", "a disk that the system does not need"),
    (DISK, mounted("8:16", "/mnt/x"), "is mounted at /mnt/x", "first: umount /mnt/x"),
    (DISK, both(PART, mounted("8:17", "/mnt/x")), "partition /dev/sdb1 is mounted at /mnt/x", "umount"),
    (DISK, PART, "has partitions: sdb1", "one of its partitions"),
    (DISK, text("/proc/swaps", f"Filename\n{DISK} partition 1 0 -2\n"), "is swap space in use", f"swapoff {DISK}"),
    (DISK, both(text(f"{BLOCK}/sdb/holders/dm-3", ""), text(f"{BLOCK}/dm-3/dm/name", "vg-lv"),
                text(f"{BLOCK}/dm-3/dm/uuid", "LVM-abc")), "a part of the LVM volume vg-lv", "nothing is built"),
    (DISK, both(text(f"{BLOCK}/sdb/holders/dm-3", ""), text(f"{BLOCK}/dm-3/dm/name", "data")),
     "is a part of the device-mapper device data (for a fault on that: --disk data)", "nothing is built on"),
    (DISK, text(f"{BLOCK}/sdb/holders/md0", ""), "is a part of the RAID array md0", "nothing is built on"),
    (DISK, text(f"{BLOCK}/sdb/ro", "1\n"), "is read-only", "can be written"),
    (DISK, text(f"{BLOCK}/sdb/size", "20480\n"), "is too small: 10 MiB", "16 MiB or more"),
    (DISK, text(f"marks:{DISK}", "LVM2_member"), "the mark of an LVM physical volume", "wipefs takes off a mark"),
    (DISK, text(f"marks:{DISK}", "linux_raid_member"), "a member of a RAID array (linux_raid_member)", "wipefs"),
    (DISK, text(f"marks:{DISK}", "swap"), "the mark of swap space", "wipefs"),
    (DISK, text(f"marks:{DISK}", "gpt PMBR"), "the mark of a partition table", "wipefs"),
    (DISK, text(f"marks:{DISK}", "oracleasm"), "the mark of oracleasm", "wipefs"),
    (DISK, text("/etc/fstab", f"# no\n{LINK} /x ext4 defaults 0 2\n"), f"named in /etc/fstab as {LINK}", "out of"),
    (DISK, both(text(f"marks:{DISK}", "ext4"), text("/etc/fstab", "UUID=ext4-uuid /x ext4 defaults 0 2\n")),
     "is named in /etc/fstab as UUID=ext4-uuid", "first take that line out"),
    (DISK, text("/etc/crypttab", f"x {DISK} none\n"), "is named in /etc/crypttab", "first take that line out"),
    (DISK, lambda k: (k.texts.pop(LINK), None)[1], "has no name below /dev/disk that outlives", "PARTUUID"),
    ("/dev/loop5", both(text("/dev/loop5", ""), text(f"{BLOCK}/loop5/dev", "7:5")), "is a loop device", "--size"),
    ("/dev/dm-3", both(text("/dev/dm-3", ""), text(f"{BLOCK}/dm-3/dev", "1:3"),
                        text(f"{BLOCK}/dm-3/dm/name", "vg")),
     "is the device-mapper device vg already", "--disk vg"),
    ("/dev/null", text("/dev/null", ""), "is no disk", "a whole disk or a partition"),
]  # fmt: skip


@pytest.mark.parametrize(("device", "spoil", "message", "allowed"), REFUSALS, ids=[r[2][:40] for r in REFUSALS])
def test_what_must_not_be_taken(
    device: str, spoil: Callable[[Kernel], None], message: str, allowed: str, tmp_path: Path
) -> None:
    kernel = machine()
    spoil(kernel)
    before = copy.deepcopy(kernel)
    with pytest.raises(Refusal) as caught:
        do(kernel, tmp_path, name="spare", device=device)
    assert message in caught.value.message
    assert allowed in caught.value.allowed
    assert caught.value.field == "device"
    assert kernel == before
    assert not (tmp_path / "disks").exists()


def test_a_disk_that_somebody_has_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((("process 6 (udev-worker)",), ()))
    passing = Preparer(SpareHost(machine()), tmp_path, lambda: (), holders=lambda number: next(looks, ()))
    assert passing.do(Request(name="spare", device=DISK))[1], "one who only looks is waited for"
    monkeypatch.setattr("node_agent.prepare.looking.OPEN_S", 0.0)
    state = tmp_path / "other"
    one = Preparer(SpareHost(machine()), state, lambda: (), holders=lambda number: (f"process 7 ({number})",))
    with pytest.raises(Refusal, match=r"is held open by process 7 \(8:16\)"):
        one.do(Request(name="spare", device=DISK))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"name": "Spare", "device": DISK}, "name"),
        ({"name": "groundfault-x", "device": DISK}, "name"),
        ({"device": DISK, "size_mib": 64}, "size_mib"),
        ({"device": "sdb"}, "device"),
        ({"device": DISK, "file": "/x"}, "file"),
        ({"device": DISK, "format": "btrfs"}, "format"),
        ({"device": DISK, "erase": True}, "erase"),
        ({"device": DISK, "mount": "/var/x"}, "mount"),
        ({"device": DISK, "mount": "/srv"}, "mount"),
        ({"device": DISK, "mount": "/srv/../etc"}, "mount"),
        ({"device": DISK, "mount": "/srv/a b"}, "mount"),
        ({"size_mib": 3}, "size_mib"),
        ({"size_mib": 200, "format": "xfs"}, "size_mib"),
        ({"size_mib": 64, "file": "/proc/x"}, "file"),
        ({"undo": True, "device": DISK}, "undo"),
    ],
)
def test_impossible_requests(request_: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        do(machine(), tmp_path, **request_)
    assert caught.value.field == field


def test_what_is_on_a_disk_stays_unless_it_may_go(tmp_path: Path) -> None:
    kernel = machine()
    kernel.texts[f"marks:{DISK}"] = "xfs"
    with pytest.raises(Refusal, match="format: /dev/sdb holds xfs") as caught:
        do(kernel, tmp_path, **ON_DISK)
    assert "--yes-erase destroys it" in caught.value.allowed
    (view,), _ = do(kernel, tmp_path, name="spare", device=DISK, mount="/srv/spare")
    assert (view.record.filesystem, kernel.texts[f"marks:{DISK}"]) == ("xfs", "xfs")
    undo(kernel, tmp_path)
    do(kernel, tmp_path, **ON_DISK, erase=True)
    assert kernel.texts[f"marks:{DISK}"] == "ext4"


def test_an_empty_disk_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="has no file system"):
        do(machine(), tmp_path, name="spare", device=DISK, mount="/srv/spare")


def test_a_place_in_use_is_not_mounted_over(tmp_path: Path) -> None:
    kernel = machine()
    for mount, message in (("/srv/data", "something is mounted at"), ("/srv/full", "is not empty")):
        kernel.files["/srv/full"] = SimFile(4096, [], kind="directory")
        kernel.files["/srv/full/x"] = SimFile(1, [])
        with pytest.raises(Refusal, match=message):
            do(kernel, tmp_path, **{**ON_DISK, "mount": mount})


def test_a_file_leaves_room_for_others(tmp_path: Path) -> None:
    kernel = machine()
    with pytest.raises(Refusal, match="would leave less than 10 %") as caught:
        do(kernel, tmp_path, name="spare", size_mib=700)
    assert caught.value.allowed == "at most 585 MiB there"
    do(kernel, tmp_path, name="spare", size_mib=585)
    with pytest.raises(ConflictError, match="is prepared as spare"):
        do(kernel, tmp_path, name="other", size_mib=64, file=FILE)
    with pytest.raises(Refusal, match="exists"):
        do(kernel, tmp_path, name="other", size_mib=64, file="/etc/passwd")
    with pytest.raises(Refusal, match="there is no folder /nowhere"):
        do(kernel, tmp_path, name="other", size_mib=64, file="/nowhere/x")


def test_names_and_disks_are_taken_once(tmp_path: Path) -> None:
    kernel = machine()
    with pytest.raises(ConflictError, match="there is a device-mapper device data already"):
        do(kernel, tmp_path, device=DISK)
    do(kernel, tmp_path, **ON_DISK)
    with pytest.raises(ConflictError, match=f"{LINK} is prepared as spare"):
        do(kernel, tmp_path, name="other", device=DISK)
    with pytest.raises(ConflictError, match="at /srv/spare already"):
        do(kernel, tmp_path, **{**ON_DISK, "mount": "/srv/elsewhere"})


def test_two_at_once(tmp_path: Path) -> None:
    kernel = machine()
    one = preparer(kernel, tmp_path)
    changes: list[object] = []

    def ask(request: dict[str, Any]) -> None:
        try:
            changes.append(one.do(Request(**request))[1])
        except AgentError as error:
            changes.append(error.code)

    for requests, expected in (((ON_DISK, ON_DISK), [False, True]), ((ON_DISK, {**ON_DISK, "name": "b"}), None)):
        changes.clear()
        threads = [threading.Thread(target=ask, args=(r,)) for r in requests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        if expected is not None:
            assert sorted(map(bool, changes)) == expected
        else:
            assert sorted(map(str, changes)) == ["False", "conflict"]
    assert set(kernel.dm) == {"data", "spare"}


def test_an_undo_refuses_what_is_in_use(tmp_path: Path) -> None:
    kernel = machine()
    do(kernel, tmp_path, **ON_DISK)
    before = shape(kernel, tmp_path)
    request = Request(name="spare", undo=True)
    with pytest.raises(ConflictError, match="injections are live on this node: abc"):
        preparer(kernel, tmp_path, live=("abc",)).do(request)
    with pytest.raises(Refusal, match="/srv/spare is in use: it does not work; nothing was changed"):
        preparer(kernel, tmp_path, fails="umount").do(request)
    number, table = kernel.dm["spare"]
    kernel.dm["spare"] = (number, (*table, *table))
    with pytest.raises(ConflictError, match="another table than it was given"):
        undo(kernel, tmp_path)
    kernel.dm["spare"] = (number, table)
    assert shape(kernel, tmp_path) == before
    assert Records(tmp_path / "disks").all()[0].state == "ready"
    kernel.loops["/dev/dm-1"] = LoopInfo("/dev/loop3", "7:3", f"/dev/dm-{number.partition(':')[2]}")
    with pytest.raises(Refusal, match="is held by"):
        undo(kernel, tmp_path)
    kernel.loops.clear()
    assert shape(kernel, tmp_path) == before, "mounted again"


def test_after_a_reboot_it_is_brought_up(tmp_path: Path) -> None:
    kernel = machine()
    do(kernel, tmp_path, **ON_DISK)
    do(kernel, tmp_path, name="image", size_mib=64, mount="/srv/image")
    before = shape(kernel, tmp_path)
    mounts = machine().texts
    kernel.dm = {"data": kernel.dm["data"]}
    kernel.loops = {}
    kernel.texts |= {key: mounts[key] for key in ("/proc/self/mountinfo", "/proc/self/mounts")}
    views, _ = do(kernel, tmp_path)
    assert [(v.record.name, v.problem) for v in views] == [
        ("image", "it is not there"), ("spare", "it is not there")
    ]  # fmt: skip
    host, records = SpareHost(kernel), Records(tmp_path / "disks")
    assert bring_up_all(host, records, lambda record: True) == ()
    found = shape(kernel, tmp_path)
    assert sorted(found.pop("mounts")) == sorted(before.pop("mounts"))
    assert found == before
    assert not any(argv[0].startswith(("mkfs", "wipefs", "fallocate")) for argv in host.ran)


def test_a_disk_that_is_gone_or_another_does_not_come_up(tmp_path: Path) -> None:
    kernel = machine()
    do(kernel, tmp_path, **ON_DISK)
    kernel.dm = {}
    records = Records(tmp_path / "disks")
    assert bring_up_all(SpareHost(kernel), records, lambda record: False) == (f"spare: {LINK} is not there",)
    kernel.texts[f"{BLOCK}/sdb/size"] = "999999\n"
    (problem,) = bring_up_all(SpareHost(kernel), records, lambda record: True)
    assert "had 131072: it is another disk" in problem
    assert kernel.dm == {}


def test_it_is_no_residue(tmp_path: Path) -> None:
    kernel = machine()
    host, base = SpareHost(kernel), Baseline(tmp_path / "baseline.json")
    base.write(host.boot_id(), look(host))
    touched = [("dm", "spare"), ("loop", "/dev/loop0"), ("mount", "/srv/spare")]

    def residue() -> tuple[object, ...]:
        state = base.read(host.boot_id())
        assert state is not None
        return compare(state, look(host), (), touched)

    for request in (ON_DISK, ON_FILE):
        do(kernel, tmp_path, **request)
        assert residue() == ()
        undo(kernel, tmp_path)
        assert residue() == ()


def test_a_record_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "disks").mkdir()
    (tmp_path / "disks" / "spare.json").write_text("{")
    with pytest.raises(StorageError, match=r"spare\.json cannot be read"):
        do(machine(), tmp_path)


def test_on_the_command_line(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.run("node", "prepare-disk", "w1", "--mount", "/srv/x").code == 64
    assert world.run("node", "prepare-disk", "w1", "--size", "1").code == 64
    assert world.run("node", "prepare-disk", "w1", "--size", "12x").code == 64
    done = world.run("node", "prepare-disk", "w1")
    assert (done.code, "prepares no disks" in done.err) == (3, True)
    kernel = machine()
    one = preparer(kernel, tmp_path)
    monkeypatch.setattr("tests.unit.cli_world.Service", lambda *a, **k: _service(*a, preparer=one, **k))
    assert world.run("node", "prepare-disk", "w1").out == "w1 has no prepared disk\n"
    made = world.run("node", "prepare-disk", "w1", "--name", "spare", "--size", "64M")
    assert made.out == (
        f"w1: spare is {FILE} (64 MiB, mounted at /srv/spare); "
        "next: labctl inject latent_sector_error --node w1 --disk spare\n"
    )
    listed = world.run("node", "prepare-disk", "w1", "--json").data
    assert [d["name"] for d in listed["disks"]] == ["spare"]
    assert json.loads((tmp_path / "disks" / "spare.json").read_text())["state"] == "ready"
    refused = world.run("node", "prepare-disk", "w1", "--device", "/dev/vda", "--name", "x")
    assert refused.code == 64
    assert "error: w1: device: /dev/vda holds the root file system" in refused.err
    assert world.run("node", "prepare-disk", "w1", "--undo", "--name", "spare").out == "w1: spare is taken away\n"
    gone = world.run("node", "prepare-disk", "w1", "--undo", "--name", "spare")
    assert (gone.code, gone.out) == (0, "w1: spare is not prepared\n")


def _service(*args: Any, **more: Any) -> Any:
    from node_agent.service import Service

    return Service(*args, **more)
