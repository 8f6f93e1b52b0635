"""The measuring program on a guest: started, prepared, and told when to make its calls."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import KernelNode, ssh_argv
from tests.vm import calls

PLACE = "/usr/local/bin/calls"
CGROUP = "/sys/fs/cgroup/witness"
"""Where measuring processes live: nothing else of the node is in it."""


def install(node: KernelNode, scratch: Path) -> None:
    """Put the program on a node, and make its control group."""
    program = calls.build(scratch)
    with program.open("rb") as content:
        subprocess.run(ssh_argv(node.node, f"cat > {PLACE} && chmod 755 {PLACE}"), stdin=content, check=True)
    node.sh(f"mkdir -p {CGROUP}")


@dataclass
class Prepared:
    """A measuring process that waits for the word. `pid` is the one that will make the calls."""

    process: subprocess.Popen[str]
    pid: int

    def go(self) -> list[str]:
        """Make the calls; one answer each, such as "ok 4096" or "EIO"."""
        said, error = self.process.communicate("go\n\n", timeout=120)
        assert self.process.returncode == 0, f"{said}{error}"
        return said.splitlines()


@contextmanager
def prepared(
    node: KernelNode, entry: str, count: int = 1, directory: str = "/srv/data/witness", cgroup: str = CGROUP
) -> Iterator[Prepared]:
    """A process that has prepared `count` calls by `entry`, in `cgroup` ("": stays where ssh put it)."""
    where = f"--cgroup {cgroup}" if cgroup else ""
    script = (
        f"mkdir -p {directory}; echo $$; exec {PLACE} run {entry} --count {count} --wait --dir {directory} {where}"
    )
    process = subprocess.Popen(
        ssh_argv(node.node, script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        ready = process.stdout.readline().strip()
        assert ready == "ready", f"{ready} {process.stderr.read() if process.stderr and not ready else ''}"
        yield Prepared(process, int(pid))
    finally:
        process.kill()
        process.wait()


def measure(node: KernelNode, entry: str, count: int = 1, **where: str) -> list[str]:
    """Prepare and make the calls at once."""
    with prepared(node, entry, count, **where) as one:
        return one.go()
