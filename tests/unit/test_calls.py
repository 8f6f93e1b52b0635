"""The witness of system-call faults tells the truth: what works, what fails, by which errno or signal."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vm import calls

FAMILIES = {
    "accept", "bind", "connect", "create", "exec", "fork", "fsync", "ioctl", "kill", "listen", "lock", "memory",
    "mmap", "mount", "open", "read", "recv", "rename", "send", "socket", "stat", "unlink", "write",
}  # fmt: skip

# What a container, another user or another file system may rightly refuse. Each says why, by exit code 3.
OWN_NAMESPACE = set(calls.entries()["mount"])
PAGE_CACHE_THAT_LETS_GO = {"mmap_fault", "pread64_direct", "pwrite64_direct", "aio_read", "aio_write"}
MAY_BE_UNABLE = OWN_NAMESPACE | PAGE_CACHE_THAT_LETS_GO | {"open_by_handle_at", "ioctl_getflags"}


def may_be_unable(entry: str) -> bool:
    return entry in MAY_BE_UNABLE or entry.startswith("io_uring_")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calls.build(tmp_path_factory.mktemp("calls"))


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, said: str = "go\n") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (program, *words), cwd=tmp_path, input=said, capture_output=True, text=True, timeout=120
        )  # fmt: skip

    return run


class Waiting:
    """A program that has said ready and waits for go."""

    def __init__(self, program: Path, cwd: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            (program, *words), cwd=cwd, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> list[str]:
        out, self.err = self.process.communicate("go\n", timeout=60)
        return out.splitlines()


@pytest.fixture
def waiting(program: Path, tmp_path: Path) -> Iterator[Callable[..., Waiting]]:
    started: list[Waiting] = []

    def start(*words: str) -> Waiting:
        started.append(Waiting(program, tmp_path, *words))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_the_list_has_what_the_sources_have(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    listed: dict[str, list[str]] = {}
    for line in run("list").stdout.splitlines():
        family, entry = line.split(" ")
        listed.setdefault(family, []).append(entry)
    assert {family: tuple(sorted(names)) for family, names in listed.items()} == calls.entries()
    assert set(listed) == FAMILIES
    assert all(len(set(names)) == len(names) for names in listed.values())


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_without_a_fault_every_entry_is_ok(
    family: str, run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    names = calls.entries()[family]
    ended = run("many", *names)
    answers = calls.answers(ended.stdout)
    assert tuple(answers) == names
    unable = {name for name, answer in answers.items() if answer.startswith("UNABLE ") and may_be_unable(name)}
    assert {name: answer for name, answer in answers.items() if name not in unable and answer[:2] != "ok"} == {}
    assert ended.returncode == (3 if unable else 0), ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_tells_its_size_every_time(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert run("run", "read", "--count", "7").stdout.splitlines() == ["ready"] + ["ok 4096"] * 7
    assert run("run", "recvfrom_udp", "--count", "300").stdout.splitlines() == ["ready"] + ["ok 16"] * 300


def test_an_object_for_each_call(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for entry in ("unlink", "accept", "execve", "listen_tcp4"):
        assert run("run", entry, "--count", "25").stdout.splitlines() == ["ready"] + ["ok"] * 25


def test_errors_planted_after_ready(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    """By other means than the faults that the program is made for: limits, and objects that are changed."""
    one = waiting("many", "openat", "mmap_private", "mmap_anonymous", "socket_tcp", "fstat")
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (0, 0))
    resource.prlimit(one.process.pid, resource.RLIMIT_AS, (16 << 20, 16 << 20))
    assert one.go() == [
        "openat EMFILE",
        "mmap_private ENOMEM",
        "mmap_anonymous ok",
        "socket_tcp EMFILE",
        "fstat ok",
    ]
    one = waiting("many", "fallocate", "pwrite64")
    resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
    assert one.go() == ["fallocate EFBIG", "pwrite64 ok 1024"]  # a short transfer, up to the limit
    one = waiting("many", "open", "execve", "unlink")
    (where,) = tmp_path.glob("calls.*")
    for name in ("open/file0", "execve/program0", "unlink/old0"):
        (where / name).unlink()
    assert one.go() == ["open ENOENT", "execve ENOENT", "unlink ENOENT"]
    assert one.process.returncode == 0


def test_a_signal_instead_of_an_answer(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    one = waiting("many", "mmap_store", "fsync")
    (where,) = tmp_path.glob("calls.*")
    os.truncate(where / "mmap_store/file0", 0)
    assert one.go() == ["mmap_store SIGBUS", "fsync ok"]


def test_the_same_call_again_after_an_error(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    one = waiting("run", "mkdir", "--wait", "--count", "3", "--repeat-errors", "--dir", "objects")
    (tmp_path / "objects/mkdir/new1").mkdir()
    assert one.go() == ["ok", "EEXIST, again EEXIST", "ok"]


def test_a_call_that_hangs_is_interrupted(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    one = waiting("many", "fcntl_setlkw", "flock", "--deadline", "1")
    (where,) = tmp_path.glob("calls.*")
    with (where / "fcntl_setlkw/file0").open("r+") as held, (where / "flock/file0").open("r+") as held_too:
        fcntl.lockf(held, fcntl.LOCK_EX)
        fcntl.flock(held_too, fcntl.LOCK_EX)
        assert one.go() == ["fcntl_setlkw TIMEOUT", "flock EAGAIN"]


def test_objects_stay_until_the_second_line(waiting: Callable[..., Waiting], tmp_path: Path) -> None:
    one = waiting("many", "mkdir", "--dir", "objects")
    assert one.process.stdin is not None
    assert one.process.stdout is not None
    one.process.stdin.write("go\n")
    one.process.stdin.flush()
    assert one.process.stdout.readline() == "mkdir ok\n"
    assert (tmp_path / "objects/mkdir/new0").is_dir()
    one.process.communicate("\n", timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_measuring_process_that_dies_is_told_and_cleared_up(
    waiting: Callable[..., Waiting], tmp_path: Path
) -> None:
    one = waiting("many", "fsync")
    one.process.kill()
    assert one.go() == []
    assert "the measuring process died" in one.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("run",),
        ("run", "read", "write"),
        ("run", "no_such"),
        ("run", "read", "--count", "0"),
        ("many", "--dir"),
    ],
)
def test_bad_words_are_refused(
    words: tuple[str, ...], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    ended = run(*words)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert ended.stderr.startswith("calls: ")
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_measured_is_exit_code_3(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    many = run("run", "accept", "--count", "1001")
    assert (many.returncode, many.stderr) == (
        3, "calls: accept: its objects can be prepared for at most 1000 calls\n",
    )  # fmt: skip
    silent = run("run", "read", "--wait", said="")
    assert (silent.returncode, silent.stdout) == (3, "ready\n")
