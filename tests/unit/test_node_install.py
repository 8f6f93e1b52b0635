"""Installing and removing the agent, on a node that is a directory: what is there after each step."""

from __future__ import annotations

import datetime as dt
import io
import json
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from labctl.errors import LabError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab import footprint as at
from labctl.lab.answering import make_answering
from labctl.lab.install import Machine, install, obstacles, remove
from labctl.lab.model import Node
from labctl.lab.remote import Output
from labctl.lab.root import Root
from labctl.pki import LabAuthority
from labctl.transport.base import ConnectError, Transport
from tests.unit.cli_world import DirectTransport

NODE = Node(name="db1", address="db1.example")


class ToyRunning:
    """What holds the lock of a node."""

    def __init__(self, node: ToyNode | None, said: str) -> None:
        self._node, self._said = node, said

    def line(self, timeout_s: float = 1.0) -> str:
        return self._said

    def send(self, text: bytes) -> None:
        raise AssertionError("nobody tells it more")

    def end(self) -> None:
        if self._node:
            self._node.holder = None


class ToyNode:
    """Carries out, in a directory, the few commands that an install uses. Loses its connection at `lost_at`."""

    def __init__(self, root: Path, node: Node = NODE) -> None:
        self.node, self.root = node, root
        self.uid, self.sudo, self.python = "0", True, "3.13"
        self.ran: list[tuple[str, ...]] = []
        self.units: list[str] = []
        self.disks: list[str] = []
        self.lost_at = -1
        self.holder: str | None = None
        self.found: dict[str, object] = {}
        """What a look finds besides."""
        for directory in ("opt", "etc/systemd/system", "var/lib", "run"):
            (root / directory).mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def files(self) -> dict[str, str]:
        """Every file below the root and its text."""
        found = (p for p in self.root.rglob("*") if p.is_file())
        return {str(p.relative_to(self.root)): p.read_text(errors="replace") for p in found}

    def run(self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = 1.0) -> Output:
        if len(self.ran) == self.lost_at:
            raise LabError(f"{self.node.name}: the SSH connection broke")
        self.ran.append(tuple(argv))
        words = list(argv)
        if words[0] == "sudo":
            if not self.sudo:
                return Output(1, "", "sudo: a password is required")
            words = words[3:]
        answer = getattr(self, "_" + words[0].rsplit("/", 1)[-1].replace("-", "_"))(words[1:], stdin)
        return answer if isinstance(answer, Output) else Output(0, "", "")

    def start(self, argv: Sequence[str], first: bytes = b"") -> ToyRunning:
        if len(self.ran) == self.lost_at:
            raise LabError(f"{self.node.name}: the SSH connection broke")
        self.ran.append(tuple(argv))
        if self.holder is None and self.python:
            self.holder = argv[-1]
            return ToyRunning(self, "held")
        return ToyRunning(None, f"busy {self.holder}" if self.python else "")

    def _id(self, words: list[str], stdin: object) -> Output:
        return Output(0, self.uid, "")

    def _true(self, words: list[str], stdin: object) -> None:
        pass

    def _sync(self, words: list[str], stdin: object) -> None:
        pass

    def _python3(self, words: list[str], stdin: object) -> Output:
        if not self.python:
            return Output(127, "", "bash: /usr/bin/python3: No such file or directory")
        journal, config = self.path(at.JOURNAL), self.path(at.CONFIG)
        live = sorted(p.stem for p in journal.glob("*.journal")) if journal.is_dir() else []
        kept = sorted(f"{at.CONFIG}/{p.name}" for p in config.iterdir()) if config.is_dir() else []
        present = [p for p in at.OWNED if self.path(p).exists()]
        data = {"python": self.python, "arch": "x86_64", "systemd": True, "free_mib": 4000, "present": present,
                "live": live, "kept": kept, "disks": self.disks, **self.found}  # fmt: skip
        return Output(0, json.dumps(data), "")

    def _rm(self, words: list[str], stdin: object) -> None:
        for name in words[1:]:
            path = self.path(name)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _rmdir(self, words: list[str], stdin: object) -> Output:
        try:
            for name in words:
                self.path(name).rmdir()
        except OSError as error:
            return Output(1, "", str(error))
        return Output(0, "", "")

    def _mkdir(self, words: list[str], stdin: object) -> None:
        self.path(words[-1]).mkdir()

    def _test(self, words: list[str], stdin: object) -> Output:
        return Output(0 if self.path(words[-1]).exists() else 1, "", "")

    def _mv(self, words: list[str], stdin: object) -> None:
        self.path(words[-2]).rename(self.path(words[-1]))

    def _tar(self, words: list[str], stdin: IO[bytes]) -> None:
        with tarfile.open(fileobj=stdin, mode="r|gz") as archive:
            archive.extractall(self.path(words[-1]), filter="data")

    def _install(self, words: list[str], stdin: IO[bytes]) -> None:
        target = self.path(words[-1])
        if words[0] == "-d":
            target.mkdir(parents=True, exist_ok=True)
        elif words[-2] == "/dev/stdin":
            target.write_bytes(stdin.read())
        else:
            shutil.copy(self.path(words[-2]), target)
        target.chmod(int(words[words.index("-m") + 1], 8))

    def _systemctl(self, words: list[str], stdin: object) -> None:
        self.units.append(" ".join(words))


class ToyAgent:
    """What an install asks of the agent that is there."""

    def __init__(self) -> None:
        self.ids: Sequence[str] = ()
        self.left: Sequence[str] = ()
        self.silent = False

    def live(self) -> Sequence[str]:
        if self.silent:
            raise LabError("db1: the agent does not answer")
        return self.ids

    def recover(self) -> Sequence[str]:
        return self.heal()

    def heal(self) -> Sequence[str]:
        self.live()
        self.ids = ()
        return self.left


class Quiet:
    def update(self, message: str, fraction: float | None = None) -> None:
        pass


class Rig:
    """A node, its agent, and a bundle of a given version."""

    def __init__(self, directory: Path) -> None:
        self.node, self.agent = ToyNode(directory / "node"), ToyAgent()
        self.directory = directory
        self.waited: list[str] = []
        self.mute = ""

    def bundle(self, version: str) -> Path:
        path = self.directory / f"{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in (f"{at.PROGRAM}/bin/node-agent", at.UNIT_SOURCE, f"{at.PROGRAM}/lib/{version}.py"):
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.size = len(version)
                archive.addfile(entry, io.BytesIO(version.encode()))
        return path

    def install(self, version: str = "one", **options: bool) -> None:
        def bundler(*, python_version: str, arch: str) -> Path:
            assert (python_version, arch) == ("3.13", "x86_64")
            return self.bundle(version)

        def files() -> Mapping[str, bytes]:
            return {"ca.pem": b"ca", "node.pem": b"cert", "node.key": b"key"}

        install(Root(self.node), files=files, bundler=bundler, agent=self.agent, ready=self.ready, task=Quiet(),
                who="alice@desk", **options)  # fmt: skip

    def ready(self, node: Node) -> None:
        """The wait for the agent: fails with what `mute` says."""
        self.waited.append(node.name)
        if self.mute:
            raise LabError(self.mute)

    def remove(self) -> tuple[str, ...] | None:
        return remove(Root(self.node), self.agent, Quiet(), who="alice@desk")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_an_install_puts_everything_in_its_place_and_waits(rig: Rig) -> None:
    rig.install()
    files = rig.node.files()
    assert files["opt/groundfault/lib/one.py"] == "one"
    assert files["etc/groundfault/node"] == "db1\n"
    assert files["etc/groundfault/tls/node.key"] == "key"
    assert files["etc/systemd/system/groundfault-agent.service"] == "one"
    assert rig.node.path(f"{at.TLS}/node.key").stat().st_mode & 0o777 == 0o600
    assert rig.node.path(at.TLS).stat().st_mode & 0o777 == 0o700
    assert rig.node.units == ["daemon-reload", f"enable {at.UNIT}", f"restart {at.UNIT}"]
    assert rig.waited == ["db1"]
    assert not [name for name in files if "groundfault-new" in name or name.endswith(".new")]


def test_installing_again_replaces_the_program(rig: Rig) -> None:
    rig.install("one")
    rig.install("two")
    programs = {name for name in rig.node.files() if name.startswith("opt/") and name.endswith(".py")}
    assert programs == {"opt/groundfault/lib/two.py"}


def test_an_install_that_is_cut_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    whole = Rig(tmp_path / "whole")
    whole.install("one")
    whole.install("two")
    steps = len(whole.node.ran)
    for step in range(steps):
        rig = Rig(tmp_path / str(step))
        rig.node.lost_at = step
        with pytest.raises(LabError, match="broke"):
            rig.install("one")
            rig.install("two")
        rig.node.lost_at = -1
        rig.install("two")
        assert rig.node.files() == whole.node.files(), step


def test_a_removal_leaves_nothing_wherever_it_is_cut(tmp_path: Path) -> None:
    before = ToyNode(tmp_path / "before").files()
    whole = Rig(tmp_path / "whole")
    whole.install()
    begin = len(whole.node.ran)
    assert whole.remove() == ()
    assert whole.node.files() == before
    assert not whole.node.path(at.CONFIG).exists()
    for step in range(begin, len(whole.node.ran)):
        rig = Rig(tmp_path / str(step))
        rig.install()
        rig.node.lost_at = step
        with pytest.raises(LabError, match="broke"):
            rig.remove()
        rig.node.lost_at, rig.agent.silent = -1, True
        rig.remove()
        assert rig.node.files() == before, step


def test_a_half_installed_agent_is_removed_too(tmp_path: Path) -> None:
    before = ToyNode(tmp_path / "before").files()
    whole = Rig(tmp_path / "whole")
    whole.install()
    for step in range(2, len(whole.node.ran)):
        rig = Rig(tmp_path / str(step))
        rig.node.lost_at, rig.agent.silent = step, True
        with pytest.raises(LabError, match="broke"):
            rig.install()
        rig.node.lost_at = -1
        rig.remove()
        assert rig.node.files() == before, step


def test_nothing_to_remove(rig: Rig) -> None:
    assert rig.remove() is None
    assert rig.node.units == []


def test_what_others_keep_beside_the_agent_stays(rig: Rig) -> None:
    rig.node.path(at.CONFIG).mkdir(parents=True)
    rig.node.path(f"{at.CONFIG}/network").write_text("MGMT=x")
    rig.install()
    assert rig.remove() == (f"{at.CONFIG}/network",)
    assert rig.node.files() == {"etc/groundfault/network": "MGMT=x"}


def open_journal(rig: Rig, injection_id: str) -> None:
    rig.node.path(at.JOURNAL).mkdir(parents=True)
    rig.node.path(f"{at.JOURNAL}/{injection_id}.journal").write_text("x")


def test_an_upgrade_is_refused_while_injections_are_live(rig: Rig) -> None:
    rig.install("one")
    open_journal(rig, "abcd2345")
    rig.agent.ids = ("abcd2345",)
    with pytest.raises(UsageError, match="injections are live: abcd2345; nothing was changed") as caught:
        rig.install("two")
    assert caught.value.hint == "labctl recover --node db1"
    rig.agent.silent = True
    with pytest.raises(UsageError, match="abcd2345"):
        rig.install("two")
    assert "opt/groundfault/lib/one.py" in rig.node.files()
    rig.agent.silent, rig.agent.ids = False, ()
    rig.install("two")


def test_nothing_is_removed_while_a_disk_is_prepared(rig: Rig) -> None:
    rig.install()
    before = rig.node.files()
    rig.node.disks = ["data"]
    with pytest.raises(UsageError, match="disks are under device mapper: data; nothing was removed") as caught:
        rig.remove()
    assert caught.value.hint == "labctl node prepare-disk db1 --undo --name data"
    assert rig.node.files() == before


def test_nothing_is_removed_while_something_is_stuck(rig: Rig) -> None:
    rig.install()
    rig.agent.left = ("abcd2345: STUCK",)
    with pytest.raises(NodeDirtyError, match="abcd2345: STUCK; nothing was removed"):
        rig.remove()
    assert "opt/groundfault/bin/node-agent" in rig.node.files()


def test_nothing_is_removed_while_a_silent_agent_has_live_injections(rig: Rig) -> None:
    rig.install()
    open_journal(rig, "abcd2345")
    rig.agent.silent = True
    with pytest.raises(NodeDirtyError, match="abcd2345 may be live") as caught:
        rig.remove()
    assert "systemctl restart groundfault-agent.service" in caught.value.hint
    assert "opt/groundfault/bin/node-agent" in rig.node.files()


def test_sudo_is_used_where_the_login_is_not_root_s(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.node.uid = "1000"
    rig.install()
    assert all(argv[:3] == ("sudo", "-n", "--") for argv in rig.node.ran[1:])
    rig.node.sudo = False
    with pytest.raises(UnsupportedError, match="may not use sudo without a password") as caught:
        rig.install()
    assert "NOPASSWD" in caught.value.hint


def test_a_node_without_python_is_told_apart(rig: Rig) -> None:
    rig.node.python = ""
    with pytest.raises(UnsupportedError, match="there is no /usr/bin/python3"):
        rig.install()
    rig.node.python = "3.9"
    with pytest.raises(UnsupportedError, match=r"Python 3\.9, supported are 3\.11, 3\.12, 3\.13"):
        rig.install()


def test_all_obstacles_are_told_at_once() -> None:
    machine = Machine(python="3.14", arch="riscv64", systemd=False, free_mib=3, present=(), live=(), kept=())
    assert len(obstacles(machine)) == 4
    fine = Machine(python="3.11", arch="x86_64", systemd=True, free_mib=900, present=(), live=(), kept=())
    assert obstacles(fine) == ()


def waiting(causes: list[str], elapsed: list[float]) -> list[str]:
    """Wait for an agent that first fails for these causes; returns the causes not met."""
    service = None

    def before(node: str, method: str) -> None:
        if causes:
            raise ConnectError(causes.pop(0), "no agent yet", "wait")  # type: ignore[arg-type]
        raise ZeroDivisionError("reached")

    def connect(node: Node) -> Transport:
        return DirectTransport(node, service, before)  # type: ignore[arg-type]

    make_answering(connect, 10.0, clock=lambda: sum(elapsed), sleep=elapsed.append)(NODE)
    return causes


def test_a_started_agent_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError, match="reached"):
        waiting(["refused", "closed"], [])


def test_waiting_ends_where_it_cannot_help() -> None:
    elapsed: list[float] = []
    with pytest.raises(ConnectError):
        waiting(["refused", "other_ca", "refused"], elapsed)
    assert len(elapsed) == 1


def test_waiting_ends_at_its_deadline() -> None:
    with pytest.raises(LabError, match="did not answer within 10 s: no agent yet"):
        waiting(["refused"] * 100, [])


def test_two_operators_do_not_install_at_once(rig: Rig) -> None:
    rig.node.holder = "bob@desk"
    for act in (rig.install, rig.remove):
        with pytest.raises(UsageError, match="bob@desk is installing or removing the agent; nothing was changed"):
            act()
    assert rig.node.files() == {} and rig.node.units == []
    rig.node.holder = None
    rig.install()
    assert rig.node.holder is None


def test_the_lock_ends_however_an_install_ends(rig: Rig) -> None:
    rig.mute = "db1: no answer"
    with pytest.raises(LabError, match="no answer"):
        rig.install()
    assert rig.node.holder is None


def test_the_agent_of_before_is_back_where_the_new_one_does_not_answer(rig: Rig) -> None:
    rig.install("one")
    before = rig.node.files()
    rig.mute = "db1: no answer"
    with pytest.raises(LabError, match="db1: no answer; the agent of before is back"):
        rig.install("two")
    assert rig.node.files() == before
    assert rig.node.units[-2:] == [f"enable {at.UNIT}", f"restart {at.UNIT}"]
    rig.mute = ""
    rig.install("two")
    assert "opt/groundfault/lib/two.py" in rig.node.files()


def test_what_never_answered_is_not_what_one_goes_back_to(rig: Rig) -> None:
    """An upgrade that was cut after the swap, and another one that fails: the first agent is back."""
    rig.install("one")
    before = rig.node.files()
    begin = len(rig.node.ran)
    rig.install("two")
    swapped = begin + next(i for i, argv in enumerate(rig.node.ran[begin:]) if argv[:2] == ("systemctl", "enable"))
    fresh = Rig(rig.directory / "again")
    fresh.install("one")
    fresh.node.lost_at = swapped
    with pytest.raises(LabError):
        fresh.install("two")
    fresh.node.lost_at, fresh.mute = -1, "db1: no answer"
    with pytest.raises(LabError, match="the agent of before is back"):
        fresh.install("three")
    assert fresh.node.files() == before


def test_an_install_that_fails_the_first_time_leaves_what_the_next_goes_on_from(rig: Rig) -> None:
    rig.mute = "db1: no answer"
    with pytest.raises(LabError, match=r"^db1: no answer$"):
        rig.install("one")
    rig.mute = ""
    rig.install("two")
    assert "opt/groundfault/lib/two.py" in rig.node.files()


def test_another_node_s_agent_is_not_taken_for_ours(rig: Rig) -> None:
    rig.install("one")
    before = rig.node.files()
    rig.node.found = {"name": "db9"}
    with pytest.raises(UsageError, match="that host is node db9 already; nothing was changed") as refused:
        rig.install("two")
    assert "--take-over" in refused.value.hint
    assert rig.node.files() == before
    rig.install("two", take_over=True)


def test_another_lab_s_agent_is_not_taken_for_ours(rig: Rig) -> None:
    rig.install("one")
    rig.node.found = {"authority": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}
    with pytest.raises(UsageError, match="obeys another lab; nothing was changed"):
        rig.install("two")
    rig.install("two", take_over=True)


def test_what_is_live_is_recovered_first_where_that_is_asked(rig: Rig) -> None:
    rig.install("one")
    open_journal(rig, "abcd2345")
    rig.agent.ids, rig.agent.left = ("abcd2345",), ("abcd2345: STUCK",)
    with pytest.raises(NodeDirtyError, match="STUCK; nothing was changed"):
        rig.install("two", recover=True)
    assert "opt/groundfault/lib/one.py" in rig.node.files()
    rig.agent.left = ()
    rig.install("two", recover=True)
    assert not rig.agent.ids and "opt/groundfault/lib/two.py" in rig.node.files()


def test_a_disk_that_fills_up_is_not_left_full(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(words: list[str], stdin: IO[bytes]) -> Output:
        (rig.node.path(words[-1]) / "half").write_text("x")
        return Output(2, "", "tar: half: Cannot write: No space left on device")

    rig.install("one")
    before = rig.node.files()
    monkeypatch.setattr(rig.node, "_tar", full)
    with pytest.raises(LabError, match="No space left on device"):
        rig.install("two")
    assert rig.node.files() == before


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"free_mib": 150}, "150 MiB free for /opt, needed are 200"),
        ({"state_mib": 3}, "3 MiB free for /var/lib, needed are 64"),
        ({"python": "3.10"}, r"Python 3\.10, supported are 3\.11, 3\.12, 3\.13"),
        ({"implementation": "PyPy"}, r"PyPy Python 3\.13"),
        ({"libc": "glibc 2.17"}, r"C library glibc 2\.17, needed is glibc 2\.28"),
        ({"libc": "musl 1.2"}, r"C library musl 1\.2"),
        ({"systemd": False}, "not booted with systemd"),
        ({"arch": "riscv64"}, "architecture riscv64"),
    ],
)
def test_a_machine_that_will_not_do_is_left_alone(rig: Rig, found: dict[str, object], reason: str) -> None:
    rig.node.found = found
    with pytest.raises(UnsupportedError, match=reason):
        rig.install()
    assert rig.node.files() == {}


@pytest.mark.parametrize(("days", "words"), [(-365, "365 days behind the one here"), (4000, "4000 days ahead")])
def test_a_clock_by_which_no_certificate_is_valid(rig: Rig, tmp_path: Path, days: int, words: str) -> None:
    files = LabAuthority.create(tmp_path / "pki", "rack").node_files("db1")
    rig.node.found = {"clock_unix_s": time.time() + days * 86400}
    with pytest.raises(LabError, match=words) as refused:
        install(Root(rig.node), files=lambda: files, bundler=lambda **kind: rig.bundle("one"), agent=rig.agent,
                ready=rig.ready, task=Quiet())  # fmt: skip
    told = dt.datetime.fromtimestamp(time.time() + days * 86400, dt.UTC)
    assert f"the node's clock is {told:%Y-%m-%d}" in refused.value.message
    assert "timedatectl" in refused.value.hint
    assert rig.node.files() == {}


def test_an_upload_that_is_cut_is_done_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.install("one")

    def cut(words: list[str], stdin: IO[bytes]) -> Output:
        (rig.node.path(words[-1]) / "half").write_text("x")
        rig.node.lost_at = len(rig.node.ran)
        raise LabError("db1: the SSH connection broke during tar")

    with monkeypatch.context() as broken:
        broken.setattr(rig.node, "_tar", cut)
        with pytest.raises(LabError, match="broke during tar"):
            rig.install("two")
    rig.node.lost_at = -1
    assert "opt/groundfault/lib/one.py" in rig.node.files()
    rig.install("two")
    assert not [name for name in rig.node.files() if name.endswith("half")]
    assert "opt/groundfault/lib/two.py" in rig.node.files()
