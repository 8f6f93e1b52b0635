"""What tests of disk faults share: a node whose data disk is spoilt, and the state it must be in afterwards."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.fault import Evidence
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh_argv
from tests.user import until
from tests.vm import integrity
from tests.vm.integrity import BLOCK, NOTHING, SECTOR, Checker, Job, Ledger, Report

TOP = "/srv/data"
DISK = "data"
"""Where the data disk of a lab's node is mounted, and its name."""

BLOCKS = 64
"""Of 4 KiB, in the files that are watched; each has so many sectors:"""

PER_BLOCK = BLOCK // SECTOR

_NUMBERS = itertools.count(1)


@dataclass
class Bench:
    """A node and its agent. `below` is the disk under the device-mapper device, past every fault."""

    lab: LabUnderTest
    node: Node
    agent: AgentClient
    below: str
    mine: list[str] = field(default_factory=list)
    connections: ExitStack = field(default_factory=ExitStack)
    sockets: str = "/nowhere"

    def through(self, argv: list[str]) -> list[str]:
        """The same ssh command by way of one connection: a login takes an emulated node a second or two."""
        shared = {"ControlMaster": "auto", "ControlPath": f"{self.sockets}/%p", "ControlPersist": "600"}
        return [argv[0], *(word for key, value in shared.items() for word in ("-o", f"{key}={value}")), *argv[1:]]

    def run(self, script: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """A script on the node, however it ends."""
        argv = self.through(ssh_argv(self.node, script))
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)

    def sh(self, script: str, check: bool = True, timeout: float = 120.0) -> str:
        done = self.run(script, timeout)
        assert not check or done.returncode == 0, (
            f"{script} ended with {done.returncode}: {done.stderr}{done.stdout}"
        )
        return done.stdout.strip()

    def says(self, script: str) -> str:
        """What a command says on standard error; empty where it went well."""
        done = self.run(script)
        return done.stderr.strip() if done.returncode else ""

    def checker(self, scratch: Path) -> Checker:
        """The integrity workload, put on the node."""
        plain = integrity.on_node(self.node, scratch)
        return Checker(lambda words: self.through(plain.command(words)))

    def under(self, sector: int, size: int = 8) -> str:
        """The first bytes at a sector of the disk itself, past device mapper and its faults."""
        return self.sh(
            f"dd if={self.below} iflag=direct bs=512 skip={sector} count=8 status=none | head -c {size}"
        )

    def power_on(self) -> None:
        """Boot the node, whose plug was pulled, from its disks as they are, and talk to its agent again."""
        self.lab.provider.power_on(self.node.name)
        self.connections.close()
        self.node = self.lab.node(self.node.name)
        self.agent = AgentClient(self.connections.enter_context(connect(self.node, self.lab.authority)))
        self.agent.probe()  # which makes devices of its own, and has to be over before tables are compared

    def hang_up(self) -> None:
        """End the connection that is shared."""
        subprocess.run([*self.through(ssh_argv(self.node))[:-1], "-O", "exit"], capture_output=True, timeout=30)

    def data(self, script: str) -> Any:
        """The JSON that a script prints."""
        return json.loads(self.sh(script))

    def inject(self, fault: str, **parameters: Any) -> InjectionView:
        name = f"disk-{next(_NUMBERS)}"
        self.mine.append(name)
        view = self.agent.apply(name, fault, parameters, 600)
        assert view.state == "active" and view.evidence is not None and view.evidence.armed, view
        return view

    def look(self, view: InjectionView) -> InjectionView:
        """The injection as it is now, ended or not."""
        (now,) = self.agent.list(ids=(view.id,), ended=True).injections
        return now

    def evidence(self, view: InjectionView) -> Evidence:
        now = self.look(view)
        assert now.evidence is not None
        return now.evidence

    def seen(self, view: InjectionView) -> list[bool]:
        """Of each sign that a real failure leaves, whether it was found, in the order declared."""
        return [sign.seen for sign in self.evidence(view).signs]

    def recover(self, view: InjectionView) -> InjectionView:
        (ended,) = self.agent.recover((view.id,)).injections
        assert (ended.state, ended.residue) == ("recovered", ()), ended
        return ended

    def recover_all(self) -> None:
        live = tuple(view.id for view in self.agent.list().injections if view.id in self.mine)
        if live:
            self.agent.recover(live)
        self.mine.clear()

    def tables(self) -> str:
        """All that disk faults make: tables, loop devices, files in memory."""
        return self.sh("dmsetup table; losetup --list --noheadings; ls /dev/shm")

    def is_well(self) -> None:
        """The file system takes a write, and says nothing against it."""
        assert self.says(f"echo well > {TOP}/is-it && sync {TOP}/is-it && rm {TOP}/is-it") == ""
        assert self.sh("cat /sys/fs/ext4/dm-0/errors_count", check=False) in ("", "0")

    def log_mark(self) -> str:
        """Where the kernel log ends now, for :meth:`logged`: a line of our own."""
        text = f"tests: mark {next(_NUMBERS)}"
        self.sh(f"echo '{text}' > /dev/kmsg")
        return text

    def logged(self, mark: str, pattern: str) -> list[str]:
        """The kernel's lines since the mark that match a pattern of grep -E."""
        return self.sh(f"dmesg | sed '1,/{mark}/d' | grep -E '{pattern}'", check=False).splitlines()


@contextmanager
def disk_bench(lab: LabUnderTest, name: str) -> Iterator[Bench]:
    """A node fresh from the snapshot, and so again at the end."""
    lab.reset()
    node = lab.node(name)
    with ExitStack() as stack:
        sockets = stack.enter_context(TemporaryDirectory(prefix="disks-"))
        connections = stack.enter_context(ExitStack())
        agent = AgentClient(connections.enter_context(connect(node, lab.authority)))
        bench = Bench(lab, node, agent, "", connections=connections, sockets=sockets)
        stack.callback(bench.hang_up)
        bench.below = bench.sh("echo /dev/$(ls /sys/block/dm-0/slaves)")
        yield bench
    lab.reset()


@contextmanager
def left_as_it_was(bench: Bench) -> Iterator[None]:
    """Around each test: whatever it did, tables are byte for byte as before, and there is no residue."""
    before = bench.tables()
    bench.mine.clear()
    yield
    bench.recover_all()
    until("nothing is left", lambda: bench.agent.residue() == (), 30)
    after = bench.tables()
    assert after == before, f"{before}\n->\n{after}"
    bench.is_well()


@dataclass
class Blocks:
    """A file of blocks that say what they are, and all that is known of their writes."""

    checker: Checker
    job: Job
    ledger: Ledger = NOTHING

    @property
    def path(self) -> str:
        return self.job.path

    def write(self, count: int) -> Ledger:
        """So many writes more; the ledger of these alone."""
        before = self.ledger
        self.ledger = self.checker.write(self.job, count, before)
        return Ledger(self.ledger.text[len(before.text) :])

    def report(self, *, buffered: bool = False) -> Report:
        return self.checker.verify(self.path, self.ledger, buffered=buffered)

    def is_intact(self) -> None:
        report = self.report()
        assert report.counts == {"intact": self.job.blocks}, report.findings[:3]


def fresh(checker: Checker, name: str, *, top: str = TOP, direct: bool = True) -> Blocks:
    """All blocks written once and acknowledged."""
    """Around in order: write n lands in block (n - 1) % BLOCKS."""
    job = Job(path=f"{top}/{name}", blocks=BLOCKS, direct=direct, pattern="sequential")
    blocks = Blocks(checker, job)
    blocks.write(BLOCKS)
    return blocks


def again(blocks: Blocks, block: int) -> int:
    """The number of the write that came to a block when all were written the second time."""
    return BLOCKS + 1 + block


def header(bench: Bench, sector: int) -> tuple[int, int]:
    """Block and number of the write that a sector of the disk names, read past device mapper."""
    one = f"dd if={bench.below} iflag=direct bs={SECTOR} skip={sector} count=1 status=none"
    words = [int(word) for word in bench.sh(f"{one} | od -A n -t u8 -N 40 -w40").split()]
    return words[2], words[4]


def extents(bench: Bench, path: str) -> list[tuple[int, int, int]]:
    """Of each extent the first sector in the file, the first on the data disk, and how many."""
    lines = bench.sh(f"filefrag -v -b512 {path}").splitlines()
    found = (re.match(r"\s*\d+:\s+(\d+)\.\.\s*\d+:\s+(\d+)\.\.\s*\d+:\s+(\d+):", line) for line in lines)
    return [(int(m[1]), int(m[2]), int(m[3])) for m in found if m]


def sector_of(bench: Bench, path: str, block: int) -> int:
    """Where on the data disk a block of a file is."""
    wanted = block * PER_BLOCK
    return next(
        at + wanted - first for first, at, count in extents(bench, path) if first <= wanted < first + count
    )
