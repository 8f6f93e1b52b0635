"""The oracle of disks: its program on this machine's files, and its judgement."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from labctl.oracles.disks import Disks, complaints
from labctl.oracles.on_node import disks as on_node
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

DISKS = Disks(node="w2")
READ = {"errors": [], "files": 900, "bytes": 60_000_000, "unread": 0}
NODE = {
    "source": "/dev/mapper/data", "type": "ext4", "options": ["rw", "relatime"], "write": "", "read": READ,
    "errors_count": "0",
}  # fmt: skip
LOG = """\
[    2.531200] w2 kernel: EXT4-fs (dm-0): mounted filesystem 0b4e r/w with ordered data mode. Quota mode: none.
[  300.100000] w2 kernel: sd 0:0:0:1: [sdb] tag#61 Sense Key : Medium Error [current]
[  300.200000] w2 kernel: critical medium error, dev sdb, sector 264208 op 0x0:(READ) flags 0x80700
[  371.000000] w2 kernel: Buffer I/O error on dev dm-0, logical block 33026, async page read
[  372.000000] w2 kernel: nginx[88]: segfault at 0
"""


def lab(node: dict[str, Any] | None = None, told: str = "", uptime: str = "1000.0", log: str = LOG) -> Told:
    said = told or "## smart\nsdb: SMART Health Status: OK\n## superblock\nFilesystem state:         clean\n"
    return Told([
        ("w2", "END-OF-PROGRAM", json.dumps({**NODE, **(node or {})})),
        ("w2", "dumpe2fs", f"{said}## kernel\n{uptime}\n## lines\n{log}"),
    ])  # fmt: skip


HEALTHY = DISKS.look(lab())


def judged(seen: Any) -> Any:
    return DISKS.judge(HEALTHY, seen, WINDOW)


def test_a_disk_that_is_well() -> None:
    assert HEALTHY["complaints"] == (
        (699.9, "sd 0:0:0:1: [sdb] tag#61 Sense Key : Medium Error [current]"),
        (699.8, "critical medium error, dev sdb, sector 264208 op 0x0:(READ) flags 0x80700"),
        (629.0, "Buffer I/O error on dev dm-0, logical block 33026, async page read"),
    )
    found = judged(HEALTHY)
    assert (found.outcome, found.reasons) == (Outcome.PASS, ())
    assert found.measures == {"files": 900, "bytes": 60_000_000, "complaints": 0}
    assert (DISKS.name, Disks(node="w3", path="/srv/x").name) == ("disks_w2", "disks_w3_srv_x")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"write": "Read-only file system"}, "a write to /srv/data: Read-only file system"),
        ({"write": None}, "a write to /srv/data hangs"),
        ({"read": None}, "reading the files of /srv/data hangs"),
        ({"read": {**READ, "errors": [["/srv/data/a", "Input/output error"]]}},
         "reading /srv/data/a: Input/output error"),
        ({"options": ["rw", "emergency_ro"]}, "/srv/data is mounted read-only"),
        ({"errors_count": "3"}, "the file system has counted 3 errors"),
        ({"source": "/dev/vda1"}, "/srv/data is /dev/vda1 ext4, was /dev/mapper/data ext4"),
    ],
)  # fmt: skip
def test_what_it_rejects(node: dict[str, Any], reason: str) -> None:
    found = judged(DISKS.look(lab(node)))
    assert (found.outcome, found.reasons) == (Outcome.FAIL, (reason,))


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("## smart\nsdb: SMART Health Status: FAILURE PREDICTION THRESHOLD EXCEEDED\n## superblock\n"
         "Filesystem state: clean\n", "SMART: sdb: SMART Health Status: FAILURE PREDICTION THRESHOLD EXCEEDED"),
        ("## smart\nsdb: SMART Health Status: OK\n## superblock\nFilesystem state: clean with errors\n"
         "FS Error count: 2\n", "superblock: Filesystem state is clean with errors"),
        ("## smart\nsdb: SMART Health Status: OK\n## superblock\n", "its superblock cannot be read"),
        ("## smart\n## superblock\nFilesystem state: clean\n", "a disk that had SMART health says nothing of it"),
    ],
)  # fmt: skip
def test_what_the_disk_says(told: str, reason: str) -> None:
    found = judged(DISKS.look(lab(told=told)))
    assert found.outcome is Outcome.FAIL and found.reasons[0] == reason


def test_complaints_of_the_kernel_count_while_they_are_new() -> None:
    found = judged(DISKS.look(lab(uptime="390.0")))
    assert found.reasons == (
        "1 complaints of the kernel in the window, such as: Buffer I/O error on dev dm-0, logical block 33026, "
        "async page read",
    )
    assert judged(DISKS.look(lab(uptime="402.0"))).outcome is Outcome.PASS
    assert [*complaints(("nonsense", "[ 1.0] w2 kernel: all is well"), 2.0)] == []


def test_what_was_not_read_in_time_is_not_known() -> None:
    found = judged(DISKS.look(lab({"read": {**READ, "unread": 7}})))
    assert (found.outcome, found.reasons) == (Outcome.UNKNOWN, ("7 files were not read within 60 s",))


def test_the_program_reads_all_and_leaves_nothing(tmp_path: Path) -> None:
    sizes = {"empty": 0, "small": 10, "page": 4096, "odd": 3 * (1 << 20) + 777, "even": 1 << 20}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "link").symlink_to(tmp_path / "odd")
    assert on_node.read_all(str(tmp_path), 60) == {
        "errors": [], "files": 5, "bytes": sum(sizes.values()), "unread": 0,
    }  # fmt: skip
    assert on_node.try_write(str(tmp_path)) == ""
    assert {p.name for p in tmp_path.iterdir()} == {*sizes, "below"}
    assert on_node.read_all(str(tmp_path), 0)["unread"] == 6, "the link, too"
    assert on_node.try_write("/proc") != ""


def test_the_program_tells_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad").write_bytes(b"x" * 8192)

    def failing(fd: int, buffers: Any, offset: int) -> int:
        if offset:
            raise OSError(5, os.strerror(5))
        return 4096

    monkeypatch.setattr(os, "preadv", failing)
    assert on_node.read_all(str(tmp_path), 60)["errors"] == [[str(tmp_path / "bad"), "Input/output error"]]


def test_the_mount_of_a_path() -> None:
    assert on_node.mounted("/proc/sys")[1] == "proc"
