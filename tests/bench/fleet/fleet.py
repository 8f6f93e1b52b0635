"""A fleet on this machine: processes full of agents, a lab of provider ssh made of them, and runs of labctl."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from labctl.lab.inventory import parse_inventory
from labctl.lab.ssh import SshLab

LAB = "fleet"
LONGEST_S = 600.0


@dataclass(frozen=True)
class Run:
    """What one labctl command did and cost: seconds of wall clock and of processors, here and in the agents.

    `rss_mib` is the most memory that labctl had at one moment.
    """

    code: int
    data: Any
    error: str
    wall_s: float
    cpu_s: float
    agents_cpu_s: float
    rss_mib: float

    def cost(self) -> dict[str, float | int]:
        """For the report."""
        return {"exit": self.code, "wall_s": round(self.wall_s, 2), "cpu_s": round(self.cpu_s, 2),
                "agents_cpu_s": round(self.agents_cpu_s, 2), "rss_mib": round(self.rss_mib, 1)}  # fmt: skip


@dataclass
class Fleet:
    """The processes, and which port is whose."""

    home: Path
    processes: list[subprocess.Popen[str]]
    ports: dict[str, int]
    deaf: dict[str, socket.socket] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All nodes, in order."""
        return list(self.ports)

    def order(self, order: Mapping[str, Any]) -> list[Any]:
        """Tell every process the same and collect what each says."""
        for process in self.processes:
            assert process.stdin
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answers = []
        for process in self.processes:
            assert process.stdout
            answers.append(json.loads(process.stdout.readline()))
        return answers

    def moods(self, moods: Mapping[str, str], about: Sequence[str], late_s: float = 0.0) -> None:
        """From now on these nodes are silent, late or liars about these methods; all others are well."""
        self.order({"moods": moods, "about": list(about), "late_s": late_s})

    def live(self) -> dict[str, int]:
        """How many injections stand on each node that has any: asked of the agents, not of labctl."""
        return {name: count for answer in self.order({"live": True}) for name, count in answer.items()}

    def make_lab(self, deaf: Sequence[str] = ()) -> None:
        """The lab's inventory. Behind the ports of `deaf` somebody listens who never says a word."""
        for name in deaf:
            if name not in self.deaf:
                self.deaf[name] = socket.create_server(("127.0.0.1", 0), backlog=64)
        ports = self.ports | {name: self.deaf[name].getsockname()[1] for name in deaf}
        tables = [
            f'[nodes.{name}]\naddress = "127.0.0.1"\nport = {20000 + number}\nagent_port = {ports[name]}\n'
            f'lab_address = "10.0.{number // 250}.{number % 250 + 1}"\nlabels = {{ rack = "r{number % 10}" }}\n'
            for number, name in enumerate(ports)
        ]
        SshLab(lab_dir(self.home)).set_hosts(parse_inventory("".join(tables), self.home / "hosts.toml"))

    def labctl(self, *argv: str) -> Run:
        """Run a command line with --json, and what it cost."""
        command = (sys.executable, "-m", "labctl", "--lab", LAB, *argv, "--json")
        environment = {**os.environ, "XDG_STATE_HOME": str(self.home)}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            began, before = time.monotonic(), self._agents_cpu()
            process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
            _, status, used = os.wait4(process.pid, 0)
            wall = time.monotonic() - began
            agents = self._agents_cpu() - before
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            text, error = out.read(), err.read()
        try:
            data = json.loads(text)
        except ValueError:
            raise RuntimeError(f"labctl {' '.join(argv)}: {process.returncode}: {error[-2000:]}") from None
        return Run(
            process.returncode, data, error, wall, used.ru_utime + used.ru_stime, agents, used.ru_maxrss / 1024
        )

    def _agents_cpu(self) -> float:
        used = [psutil.Process(process.pid).cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in used)


def lab_dir(home: Path) -> Path:
    """Where labctl keeps the lab of this state home."""
    return home / "groundfault" / "labs" / LAB


@contextmanager
def fleet(nodes: int, processes: int) -> Iterator[Fleet]:
    """So many agents in so many processes. State is in memory, so that this machine's disk is not measured."""
    from labctl.pki import LabAuthority

    shm = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="fleet-", dir=shm if shm.is_dir() else None))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        pki = lab_dir(home) / "pki"
        LabAuthority.ensure(pki, LAB)
        (home / "agents").mkdir()
        running: list[subprocess.Popen[str]] = []
        for first in range(1, processes + 1):  # neighbours in different ones: labctl asks in order
            argv = (sys.executable, "-m", "tests.bench.fleet.agents", str(pki), str(home / "agents"), str(first),
                    str(nodes), str(processes))  # fmt: skip
            log = stack.enter_context((home / f"agents-{first}.log").open("w"))
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.callback(_end, process)
            running.append(process)
        ports: dict[str, int] = {}
        for process in running:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("".join(path.read_text() for path in home.glob("agents-*.log"))[-2000:])
            ports |= json.loads(line)
        made = Fleet(home, running, dict(sorted(ports.items(), key=lambda item: int(item[0][1:]))))
        made.make_lab()
        yield made
        for one in made.deaf.values():
            one.close()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin and process.stdout
    process.stdin.close()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
