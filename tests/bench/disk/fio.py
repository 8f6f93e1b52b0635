"""fio on a node: a load that goes on until it is told to end, and short runs that are measured."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labctl.lab.model import Node
from tests.lab import ssh, ssh_argv

_ERROR = re.compile(
    r"io_u error on file (?P<file>\S+?): (?P<text>[^:]+): (?P<op>\w+) offset=(?P<at>\d+), buflen=(?P<size>\d+)"
)
_PATIENCE_S = 120.0
_ENDLESS = ("--time_based", "--runtime=36000", "--continue_on_error=all", "--error_dump=1")


@dataclass(frozen=True)
class IoError:
    """An error that fio met: bytes `at` to `at + size` of a file."""

    file: str
    text: str
    operation: str
    at: int
    size: int


@dataclass(frozen=True)
class Run:
    """What a run of fio told. `data` is its JSON; `iops` counts reads and writes; times in seconds."""

    data: Mapping[str, Any]
    errors: tuple[IoError, ...]

    @property
    def iops(self) -> float:
        return sum(float(self.data[way]["iops"]) for way in ("read", "write"))

    @property
    def mib_s(self) -> float:
        return sum(float(self.data[way]["bw_bytes"]) / 2**20 for way in ("read", "write"))

    @property
    def calls(self) -> int:
        return sum(int(self.data[way]["total_ios"]) for way in ("read", "write"))

    @property
    def total_errors(self) -> int:
        return int(self.data.get("total_err", 0))

    @property
    def longest_s(self) -> float:
        """The slowest I/O, from submission to completion."""
        return max(float(self.data[way]["lat_ns"]["max"]) / 1e9 for way in ("read", "write"))


def job(
    name: str, path: str, *, rw: str, size_mib: int, bs: str = "4k", depth: int = 16, **more: str
) -> tuple[str, ...]:
    """The command line of one job, with direct I/O. `more`: further options of fio."""
    options = {
        "name": name, "filename": path, "rw": rw, "size": f"{size_mib}m", "bs": bs, "iodepth": str(depth),
        "ioengine": "libaio", "direct": "1", "randrepeat": "0", "norandommap": "1", "output-format": "json",
        "eta": "never", **more,
    }  # fmt: skip
    return ("fio", *(f"--{key}={value}" for key, value in options.items()))


def understood(text: str, errors: str = "") -> Run:
    """fio's JSON, which lines of other text may go before, and the errors it wrote to standard error."""
    whole = json.loads(text[text.index("{") :])
    both = f"{text[: text.index('{')]}\n{errors}"
    met = tuple(
        IoError(m["file"], m["text"], m["op"], int(m["at"]), int(m["size"])) for m in _ERROR.finditer(both)
    )
    return Run(whole["jobs"][0], met)


def measure(node: Node, argv: tuple[str, ...], timeout_s: float = _PATIENCE_S) -> Run:
    """One run, until it has ended by itself. An I/O error makes it fail."""
    return understood(ssh(node, shlex.join(argv), timeout=timeout_s).stdout)


@dataclass
class Load:
    """fio at work. `run` is there once it has ended."""

    node: Node
    pid: int
    process: subprocess.Popen[str]
    run: Run | None = None


@contextmanager
def load(node: Node, argv: tuple[str, ...]) -> Iterator[Load]:
    """fio from here to the end of the block, when it is told to end and to say how it went."""
    script = f"echo $$; exec {shlex.join((*argv, *_ENDLESS))}"
    process = subprocess.Popen(
        ssh_argv(node, script), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    one = Load(node, int(process.stdout.readline()), process)
    try:
        yield one
        ssh(node, f"kill -INT {one.pid}")
        out, err = process.communicate(timeout=_PATIENCE_S)
        one.run = understood(out, err)
    finally:
        process.kill()
        process.wait()
