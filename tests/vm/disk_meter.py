"""A meter on a node that is not the agent's: how long each I/O takes, and many I/Os at once."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import ssh_argv
from tests.vm.disks import Bench

SOURCE = Path(__file__).with_suffix(".c")
PLACE = "/tmp/disk_meter"


@dataclass(frozen=True)
class Counted:
    """What a load has done: I/Os, those that failed, blocks that read back as something else."""

    done: int
    failed: int
    wrong: int


def install(bench: Bench) -> None:
    """Compile the meter here, and put it on the node."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "meter"
        subprocess.run(("gcc", "-O2", "-static", "-pthread", "-o", str(program), str(SOURCE)), check=True)
        argv = ssh_argv(bench.node, f"cat > {PLACE} && chmod 755 {PLACE}")
        subprocess.run(argv, input=program.read_bytes(), check=True, timeout=120)


def times(bench: Bench, op: str, path: str, *, offset: int = 0, step: int = 4096, count: int = 1) -> list[float]:
    """Milliseconds that each I/O of 4 KiB took: `r` and `w` past the page cache, `f` a byte and fdatasync."""
    text = bench.sh(f"{PLACE} times {op} {path} {offset} {step} {count}")
    return [int(line) / 1000 for line in text.splitlines()]


def usual(bench: Bench, op: str, path: str, count: int = 15) -> float:
    """The lower quartile: a busy host makes some I/Os slower and none faster, a fault makes all slower."""
    return sorted(times(bench, op, path, count=count))[count // 4]


@contextmanager
def start(bench: Bench, script: str) -> Iterator[subprocess.Popen[str]]:
    """A script that runs on the node while the test goes on; one that hangs is not waited for."""
    process = subprocess.Popen(
        ssh_argv(bench.node, script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def load(bench: Bench, path: str, threads: int) -> Iterator[list[Counted]]:
    """So many threads each write, read and compare a block of their own meanwhile; at the end the list has one."""
    found: list[Counted] = []
    free = "systemd-run --quiet --scope --property=TasksMax=infinity"  # sshd's unit has room for some hundreds
    with start(bench, f"{free} {PLACE} load {path} {threads}; [ ! -f {path} ] || rm {path}") as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "goes\n", process.communicate(timeout=60)[1]
            yield found
        finally:
            out, err = process.communicate(timeout=120)
        found.append(Counted(*(int(word) for word in out.split())))
        assert err == "", err
