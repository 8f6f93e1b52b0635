"""Disks that are full or stop: taking room and giving it back, what is refused, what goes wrong."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent import grower
from node_agent.catalog import find_fault
from node_agent.errors import ConflictError, Refusal
from node_agent.facts import gather_facts
from node_agent.fault import Target, build_fault
from node_agent.host import space as room
from node_agent.host.mounting import Mounted
from node_agent.host.space import BLOCK, FileSystemSpace
from node_agent.host.stopping import FileSystemStops
from node_agent.injector import Injector
from node_agent.steps.fill_space import FillSpace
from node_agent.steps.stop_filesystem import StopFilesystem
from tests.contract.simulated import SimulatedHost, fresh_kernel

MIB = 1 << 20
PATH = "/srv/data/app-debug.log.groundfault-x"


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


@pytest.fixture
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stay who we are: tests need no root."""
    monkeypatch.setattr(room, "become", lambda uid, gid: None)
    monkeypatch.setattr(os, "fchown", lambda fd, uid, gid: None)


class Disk:
    """A file system of `blocks` and `inodes` as statfs(2) and fallocate(2) tell of it, on top of a real folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, blocks: int, inodes: int = 1000) -> None:
        self.folder, self.blocks, self.inodes = folder, blocks, inodes
        self._fallocate, self._pwrite, self._mknod = os.posix_fallocate, os.pwrite, os.mknod
        monkeypatch.setattr(os, "fstatvfs", self.statvfs)
        monkeypatch.setattr(os, "posix_fallocate", self.fallocate)
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "mknod", self.mknod)

    @property
    def left(self) -> int:
        return self.blocks - sum(-(-p.stat().st_size // BLOCK) for p in self.folder.iterdir() if p.is_file())

    @property
    def inodes_left(self) -> int:
        return self.inodes - sum(1 + (len([*p.iterdir()]) if p.is_dir() else 0) for p in self.folder.iterdir())

    def statvfs(self, fd: int) -> Any:
        return SimpleNamespace(f_bavail=self.left, f_frsize=BLOCK, f_ffree=self.inodes_left)

    def fallocate(self, fd: int, at: int, length: int) -> None:
        if length > self.left * BLOCK - 2 * BLOCK:  # the kernel wants some for metadata
            raise OSError(errno.ENOSPC, "full")
        self._fallocate(fd, at, length)

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        if self.left < 1:
            raise OSError(errno.ENOSPC, "full")
        return self._pwrite(fd, data, at)

    def mknod(self, name: str, mode: int, *, dir_fd: int) -> None:
        if self.inodes_left < 1:
            raise OSError(errno.ENOSPC, "full")
        self._mknod(name, mode, dir_fd=dir_fd)


@pytest.mark.usefixtures("nobody_else")
class TestRoom:
    @pytest.mark.parametrize(("leave", "left"), [(0, 0), (16 * BLOCK, 16)])
    def test_filled_to_the_block(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int, left: int
    ) -> None:
        disk = Disk(monkeypatch, tmp_path, 700)
        path = tmp_path / "app.groundfault-x"
        FileSystemSpace().fill(str(path), 1, 1, leave)
        assert (disk.left, path.stat().st_mode & 0o777) == (left, 0o644)
        with path.open() as _:
            FileSystemSpace().clear(str(path))
            assert disk.left == 700
        FileSystemSpace().clear(str(path))

    def test_a_file_that_is_there_is_not_filled(self, tmp_path: Path) -> None:
        path = tmp_path / "app.groundfault-x"
        path.write_text("somebody's")
        with pytest.raises(FileExistsError):
            FileSystemSpace().fill(str(path), 1, 1, 0)
        assert path.read_text() == "somebody's"

    @pytest.mark.parametrize(("leave", "left"), [(0, 0), (7, 7)])
    def test_inodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int, left: int) -> None:
        disk = Disk(monkeypatch, tmp_path, 700, inodes=600)
        path = tmp_path / "many.groundfault-x"
        FileSystemSpace().take_inodes(str(path), 1, 1, leave)
        assert disk.inodes_left == left
        FileSystemSpace().clear(str(path))
        assert list(tmp_path.iterdir()) == []

    def test_space_that_runs_out_before_the_inodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = Disk(monkeypatch, tmp_path, 700, inodes=100)
        disk.mknod = None  # type: ignore[method-assign,assignment]
        monkeypatch.setattr(os, "mknod", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="before inodes"):
            FileSystemSpace().take_inodes(str(tmp_path / "many.groundfault-x"), 1, 1, 0)

    def test_files_of_others_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Disk(monkeypatch, tmp_path, 700, inodes=20)
        path = tmp_path / "many.groundfault-x"
        FileSystemSpace().take_inodes(str(path), 1, 1, 2)
        (path / "notes.txt").write_text("mine")
        with pytest.raises(OSError, match="not empty"):
            FileSystemSpace().clear(str(path))
        assert [p.name for p in path.iterdir()] == ["notes.txt"]

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("kept")
        (tmp_path / "a.groundfault-x").symlink_to(tmp_path / "precious")
        FileSystemSpace().clear(str(tmp_path / "a.groundfault-x"))
        assert (tmp_path / "precious").read_text() == "kept"
        assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_another_user_in_one_thread_only() -> None:
    """As root the thread is that user, and nobody else is; without root the kernel says no."""
    before = os.geteuid()
    if before == 0:
        assert room.as_user(65533, 65532, 5, "asking", lambda: (os.geteuid(), os.getegid())) == (65533, 65532)
    else:
        with pytest.raises(PermissionError):
            room.as_user(65533, 65532, 5, "asking", os.geteuid)
    assert os.geteuid() == before
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(os.geteuid()))
    thread.start()
    thread.join()
    assert seen == [before]


class TestGrower:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[int]:
        fd = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        yield fd
        os.close(fd)

    def test_what_is_due(self, file: int) -> None:
        assert grower.grow(file, 3 * MIB + 5, 0) == 3 * MIB + 5
        assert os.fstat(file).st_size == 3 * MIB + 5

    def test_until_so_much_is_left(self, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=5 * MIB - os.fstat(fd).st_size, f_frsize=1)
        )
        assert grower.grow(file, 100 * MIB, 2 * MIB) == 3 * MIB
        assert grower.grow(file, 100 * MIB, 2 * MIB) == 0

    def test_until_the_kernel_says_so(self, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.write

        def full(fd: int, data: bytes) -> int:
            if os.fstat(fd).st_size + len(data) > MIB + 10_000:
                raise OSError(errno.ENOSPC, "full")
            return write(fd, data)

        monkeypatch.setattr(os, "write", full)
        assert MIB + 4096 < grower.grow(file, 100 * MIB, 0) <= MIB + 10_000


def located(host: SimulatedHost, name: str, **parameters: Any) -> Target:
    fault = build_fault(find_fault(name), parameters)
    return fault.locate(host, gather_facts(host, "w1", {}))


def test_users(host: SimulatedHost) -> None:
    assert "user 65534 in /srv/data" in located(host, "disk_full").describe()
    assert "user 1234 in /srv/data" in located(host, "disk_full", owner="1234").describe()


@pytest.mark.parametrize(
    ("fault", "parameters", "field"),
    [
        ("disk_full", {"owner": "root"}, "owner"),
        ("disk_full", {"owner": "0"}, "owner"),
        ("disk_full", {"owner": "nosuch"}, "owner"),
        ("disk_full", {"disk": "/"}, "disk"),
        ("inodes_full", {"folder": "srv"}, "folder"),
        ("inodes_full", {"folder": "/srv/data/a"}, "folder"),
        ("inodes_full", {"folder": "/srv/data/none"}, "folder"),
        ("inodes_full", {"folder": "/etc"}, "folder"),
        ("readonly_remount", {"loses": "data"}, "loses"),
        ("readonly_remount", {"disk": "/"}, "disk"),
    ],
)
def test_refused(host: SimulatedHost, fault: str, parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        located(host, fault, **parameters)
    assert refused.value.field == field and refused.value.allowed


@pytest.mark.parametrize("fault", ["disk_full", "inodes_full", "readonly_remount"])
@pytest.mark.parametrize(
    ("was", "now"),
    [("/srv/data rw", "/srv/data ro"), ("ext4 /dev/mapper/data", "btrfs /dev/mapper/data"), ("252:0", "252:9")],
)
def test_a_file_system_that_cannot_be_used(host: SimulatedHost, fault: str, was: str, now: str) -> None:
    texts = host.kernel.texts
    assert was in texts["/proc/self/mountinfo"]
    texts["/proc/self/mountinfo"] = texts["/proc/self/mountinfo"].replace(was, now)
    with pytest.raises(Refusal) as refused:
        located(host, fault, disk="data")
    assert refused.value.field == "disk"


def test_too_many_inodes(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    many = host.space.room("/srv/data")
    monkeypatch.setattr(host.space, "room", lambda path: many.__class__(1, 1, 1, 10**9, 10**8))
    with pytest.raises(Refusal, match="takes too long"):
        located(host, "inodes_full")
    assert located(host, "inodes_full", leave=10**8 - 1000)


def test_where_there_is_too_little_already(host: SimulatedHost) -> None:
    step = FillSpace(path=PATH, mount="/srv/data", device="data", uid=1, gid=1, leave_mib=300)
    with pytest.raises(ConflictError, match="only 300 MiB"):
        step.capture(host)


def test_a_path_without_a_mark() -> None:
    for path in ("/srv/data/precious", "groundfault-x", "/srv/groundfault-x/precious", "/srv/../groundfault-x"):
        with pytest.raises(ValueError, match="mark"):
            FillSpace(path=path, mount="/srv/data", device="data", uid=1, gid=1, leave_mib=0)


def test_what_is_hidden_is_left_over(host: SimulatedHost) -> None:
    step = FillSpace(path=PATH, mount="/srv/data", device="data", uid=1, gid=1, leave_mib=0)
    step.apply(host)
    texts = host.kernel.texts
    mounted = texts["/proc/self/mountinfo"]
    texts["/proc/self/mountinfo"] = mounted.replace("/srv/data", "/srv/elsewhere")
    step.revert(host, {})
    assert PATH in texts and "may still be on it" in step.leftovers(host, {})[0]
    del host.kernel.dm["data"]
    assert step.leftovers(host, {}) == (), "a disk that is gone needs no care"
    host.kernel.dm["data"] = ("252:0", fresh_kernel().dm["data"][1])
    texts["/proc/self/mountinfo"] = mounted
    assert step.leftovers(host, {}) == (f"{PATH} is still there",)
    step.revert(host, None)
    assert step.leftovers(host, None) == ()


def test_evidence_of_what_others_did(host: SimulatedHost, tmp_path: Path) -> None:
    injector = Injector(host, tmp_path, "w1")
    injector.apply("a-1", "disk_full", {"leave_mib": 8}, 60)
    path = "/srv/data/app-debug.log.groundfault-a-1"
    host.kernel.texts[path] = f"fills but {100 * MIB}"
    evidence = injector.view("a-1").evidence
    assert evidence is not None and not evidence.armed and "freed space" in evidence.notes[0]
    del host.kernel.texts[path]
    evidence = injector.view("a-1").evidence
    assert evidence is not None and not evidence.armed and "is gone" in evidence.notes[0]
    assert injector.recover(("a-1",), "recover")[0].state == "recovered"


def stop(**more: Any) -> StopFilesystem:
    given = {"name": "groundfault-x", "device": "data", "mount": "/srv/data", "how": "error", "loses": "nothing"}
    return StopFilesystem.model_validate({**given, **more})


def test_a_file_system_that_is_ill_already(host: SimulatedHost) -> None:
    host.kernel.ailments["/srv/data"] = {"errors": "ext4 has counted 3 errors"}
    with pytest.raises(ConflictError, match="counted 3 errors"):
        stop().capture(host)


def test_the_reaction_is_put_back(host: SimulatedHost) -> None:
    """The agent died between the option and the error."""
    undo = stop().capture(host)
    mounted = host.filesystems.mounted("/srv/data")
    assert mounted is not None
    host.stops.set_reaction(mounted, "remount-ro")
    assert stop().leftovers(host, undo) == ("/srv/data has errors=remount-ro",)
    stop().revert(host, undo)
    assert (stop().leftovers(host, undo), host.kernel.reactions) == ((), {})


def test_it_waits_for_what_stands_in_the_table(host: SimulatedHost, tmp_path: Path) -> None:
    """Nothing is repaired while another fault of the disk stands, and nobody says recovered until it is."""
    injector = Injector(host, tmp_path, "w1")
    injector.apply("a-1", "readonly_remount", {}, 60)
    injector.apply("a-2", "latent_sector_error", {}, 60)
    (first,) = injector.recover(("a-1",), "recover")
    assert first.state == "stuck" and "Read-only" in first.residue[0]
    assert injector.recover(("a-2",), "recover")[0].state == "recovered"
    host.kernel.clock += 5
    injector.tick()
    assert injector.view("a-1").state == "recovered" and host.kernel.ailments == {}


@pytest.mark.parametrize(
    ("options", "number", "said"),
    [
        ("rw,noatime", 1, "continue"),
        ("rw", 2, "remount-ro"),
        ("rw", 3, "panic"),
        ("rw", 0, "continue"),
        ("rw,errors=remount-ro", 1, "remount-ro"),
        ("rw,errors=continue", 3, "continue"),
    ],
)
def test_what_an_ext4_does_at_an_error(tmp_path: Path, options: str, number: int, said: str) -> None:
    disk = tmp_path / "disk"
    block = bytearray(1024)
    struct.pack_into("<H", block, 0x3C, number)
    disk.write_bytes(bytes(1024) + block)
    assert FileSystemStops().reaction(Mounted(str(disk), "/srv/data", "ext4", options, "252:0")) == said
