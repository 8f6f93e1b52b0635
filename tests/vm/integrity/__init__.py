"""The integrity workload: blocks that say what they are, and a check that says block by block what became of them.

A static C program (a node has no compiler) writes blocks of 4 KiB to a file or a block device. Each sector of 512
bytes names its run, its block and the number of the write (the *generation*), and bears a checksum of its own, so
that a block of two writes is seen. Where the n-th write goes follows from a seed; so the *ledger* is small: which
writes were begun, returned, and were acknowledged by a sync, and when (seconds since boot). It goes to standard
output, hence over ssh to the host, or to a file on another disk: never onto the disk under test. To verify is to
compare every block with the ledger.

What a block can be, and the worst of what applies is told:

| kind | what it holds |
|---|---|
| unwritten | no write of this run has arrived, and none had to |
| intact | one write, whole, not older than the last one that returned |
| stale | an older write than the last that returned, which was never acknowledged: only a power cut may do that |
| lost | an older write than the last acknowledged one, or none at all |
| torn | sectors of different writes |
| misdirected | a sector that names another place, or another run |
| corrupted | bytes that nobody wrote; how many, against the write that comes nearest |
| unreadable | reading it answers an errno; past the page cache the sectors are told apart |

`broken_promise`: what was acknowledged is harmed. A torn block of a write that was in flight breaks none. A run
has an `id` of its own: what an earlier run left on a device is never taken for its blocks.

    checker = integrity.on_node(node, scratch)            # or integrity.here(scratch): on this machine
    job = Job(path="/srv/data/blocks", blocks=1024, direct=True)
    ledger = checker.write(job, writes=4096)              # all of it, synced every 16 writes
    with checker.writing(job, ledger) as writer:          # goes on, open-ended
        writer.until_synced(8192)
        …plant a fault, pull the plug…
    report = checker.verify(job.path, writer.ledger)      # what was heard until it ended, however it ended
    assert report.counts == {"intact": 1024}
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from labctl.lab.model import Node
from tests.lab import ssh_argv

HERE = Path(__file__).parent
COMPILER = ("gcc", "-std=gnu11", "-O2", "-static", "-Wall", "-Wextra", "-Werror")
BLOCK, SECTOR = 4096, 512
PLACE = "/usr/local/bin/integrity"

Kind = Literal["unwritten", "intact", "stale", "lost", "torn", "misdirected", "corrupted", "unreadable"]
Content = Literal["blank", "mine", "elsewhere", "garbage", "unreadable"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sector(_Value):
    """What one sector of a block holds.

    `generation` is the write it is of; of garbage, the one it comes nearest to. `file`, `block`, `number`: the
    place it names, where that is another. `wrong` bytes of garbage differ, the first at `first_wrong`.
    """

    content: Content
    generation: int
    file: int | None = None
    block: int | None = None
    number: int | None = None
    wrong: int = 0
    first_wrong: int = 0


class Finding(_Value):
    """A block that is not as it should be. `must`: the generation last acknowledged; `done`: the last that
    returned; `newest`: the last begun; 0 for none. `errno` of its read, or 0."""

    block: int
    kind: Kind
    broken_promise: bool
    must: int
    done: int
    newest: int
    errno: int
    sectors: tuple[Sector, ...]

    @property
    def generations(self) -> tuple[int, ...]:
        """Which write each sector is of."""
        return tuple(sector.generation for sector in self.sectors)

    @property
    def bad_sectors(self) -> tuple[int, ...]:
        """The sectors (0 to 7) that are unreadable, garbage, or from elsewhere."""
        return tuple(n for n, s in enumerate(self.sectors) if s.content not in ("mine", "blank"))


class Report(_Value):
    """What became of every block. `left_out`: findings beyond the limit, which `all_counts` has nevertheless."""

    findings: tuple[Finding, ...]
    left_out: int
    broken_promises: int
    all_counts: dict[Kind, int] = Field(alias="counts")

    @property
    def counts(self) -> dict[Kind, int]:
        """How many blocks there are of each kind; kinds with none are left out."""
        return {kind: n for kind, n in self.all_counts.items() if n}

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.kind == kind)

    def blocks(self, kind: Kind) -> tuple[int, ...]:
        """The places of a kind, in blocks from the start of the run."""
        return tuple(f.block for f in self.of(kind))


class Job(_Value):
    """What is written. `pattern`: around in order, anywhere, or once in order and then anywhere (`overwrite`).

    `span` blocks are one write; `every` so many writes there is a sync. `offset` in bytes. A file is emptied
    first, unless a ledger is continued.
    """

    path: str
    blocks: int = Field(default=256, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    pattern: Literal["sequential", "random", "overwrite"] = "overwrite"
    span: int = Field(default=1, ge=1, le=64)
    every: int = Field(default=16, ge=1)
    sync: Literal["fsync", "fdatasync", "none"] = "fsync"
    direct: bool = False
    offset: int = Field(default=0, ge=0, multiple_of=BLOCK)
    id: int = Field(default_factory=lambda: secrets.randbits(62) + 1, ge=1, lt=2**63)

    def words(self, *, writes: int, done: int) -> tuple[str, ...]:
        """The arguments of the program. `writes` 0: until it is told to end."""
        values = {"id": self.id, "seed": self.seed, "blocks": self.blocks, "span": self.span, "every": self.every,
                  "offset": self.offset, "from": done, "writes": writes}  # fmt: skip
        flags = (*(("--direct",) if self.direct else ()), *(("--until-eof",) if not writes else ()))
        numbers = tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))
        return ("write", self.path, *numbers, "--pattern", self.pattern[0], "--sync", self.sync, *flags)


class Failure(_Value):
    """A write (`first` is `last`) or a sync of writes that failed; `at_s`: seconds since boot."""

    what: Literal["write", "sync"]
    first: int
    last: int
    errno: int
    at_s: float


class Ack(_Value):
    """A sync that succeeded, of writes `first` to `last`; `took_s` is the sync alone."""

    first: int
    last: int
    at_s: float
    took_s: float


@dataclass(frozen=True)
class Ledger:
    """What was heard from the writer. A last line without an end says nothing and is left out."""

    text: str

    @property
    def _lines(self) -> Iterator[list[str]]:
        return (line.split() for line in self.text.splitlines(keepends=True) if line.endswith("\n"))

    @property
    def begun(self) -> int:
        """The last write that was begun, as far as was heard."""
        return max((int(w[2]) for w in self._lines if w[0] == "intent"), default=0)

    @property
    def synced(self) -> int:
        """The last write that was acknowledged."""
        return max((ack.last for ack in self.acks), default=0)

    @property
    def acks(self) -> tuple[Ack, ...]:
        return tuple(
            Ack(first=int(w[1]), last=int(w[2]), at_s=int(w[3]) / 1e6, took_s=int(w[4]) / 1e6)
            for w in self._lines
            if w[0] == "synced"
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        found = []
        for word in self._lines:
            if word[0] == "write-error":
                first, errno, at = (int(w) for w in word[1:])
                found.append(Failure(what="write", first=first, last=first, errno=errno, at_s=at / 1e6))
            elif word[0] == "sync-error":
                first, last, errno, at = (int(w) for w in word[1:])
                found.append(Failure(what="sync", first=first, last=last, errno=errno, at_s=at / 1e6))
        return tuple(found)

    @property
    def slowest_write_s(self) -> float:
        """The longest that one write call took."""
        return max((int(w[4]) / 1e6 for w in self._lines if w[0] == "wrote"), default=0.0)

    @property
    def ended(self) -> str:
        """Why it ended: `written`, `told`, `errors`; empty where it was cut off."""
        return next((w[2] for w in reversed(list(self._lines)) if w[0] == "end"), "")

    def __add__(self, later: Ledger) -> Ledger:
        whole = self.text[: self.text.rfind("\n") + 1]
        return Ledger(whole + later.text)


NOTHING = Ledger("")


@dataclass
class Writer:
    """A writer at work. Its ledger grows as it is heard."""

    process: subprocess.Popen[str]
    before: Ledger
    _heard: list[str] = field(default_factory=list)
    _change: threading.Condition = field(default_factory=threading.Condition)
    _synced: int = 0
    _over: bool = False

    @property
    def ledger(self) -> Ledger:
        with self._change:
            return self.before + Ledger("".join(self._heard))

    def until(self, what: str, condition: Callable[[Ledger], bool], within_s: float = 60.0) -> Ledger:
        """Wait until the ledger is as wanted; it is looked at after every line."""
        return self._until(what, lambda: condition(self.ledger), within_s)

    def until_synced(self, generation: int, within_s: float = 60.0) -> Ledger:
        return self._until(f"synced up to {generation}", lambda: self._synced >= generation, within_s)

    def _until(self, what: str, condition: Callable[[], bool], within_s: float) -> Ledger:
        with self._change:
            self._change.wait_for(lambda: condition() or self._over, within_s)
            good = condition()
        ledger = self.ledger
        assert good, f"not {what} within {within_s:g} s: the ledger ends with {ledger.text.splitlines()[-3:]}"
        return ledger

    def stop(self, within_s: float = 60.0) -> Ledger:
        """Tell it to end after the batch it is in, and hear the rest."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait(within_s)

    def wait(self, within_s: float = 60.0) -> Ledger:
        """Until it has ended by itself, or with its node."""
        with self._change:
            assert self._change.wait_for(lambda: self._over, within_s), f"still writing: {self.ledger.text[-200:]}"
        self.process.wait(timeout=within_s)
        return self.ledger

    def listen(self) -> None:
        """Take lines until there are no more: what its thread does."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._change:
                self._heard.append(line)
                if line.startswith("synced "):
                    self._synced = int(line.split()[2])
                self._change.notify_all()
        with self._change:
            self._over = True
            self._change.notify_all()


@dataclass(frozen=True)
class Checker:
    """The program where it is to run; `command` makes the argv that runs it there with these words."""

    command: Callable[[Sequence[str]], list[str]]

    def write(self, job: Job, writes: int, before: Ledger = NOTHING, *, within_s: float = 120.0) -> Ledger:
        """Make so many writes and return the ledger, that of `before` continued. Errors of the disk are in it."""
        argv = self.command(job.words(writes=writes, done=before.begun))
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within_s)
        assert done.returncode == 0, f"{done.returncode}: {done.stderr}{done.stdout[-500:]}"
        return before + Ledger(done.stdout)

    @contextmanager
    def writing(self, job: Job, before: Ledger = NOTHING) -> Iterator[Writer]:
        """Write until told to end, which the end of the block does. The node may die meanwhile."""
        process = subprocess.Popen(
            self.command(job.words(writes=0, done=before.begun)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        writer = Writer(process, before, _synced=before.synced)
        thread = threading.Thread(target=writer.listen, daemon=True)
        thread.start()
        try:
            yield writer
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
            thread.join(10)

    def verify(
        self, path: str, ledger: Ledger, *, buffered: bool = False, limit: int = 10_000, within_s: float = 300.0
    ) -> Report:
        """Compare every block with the ledger; past the page cache unless `buffered`."""
        words = ("verify", path, "--limit", str(limit), *(("--buffered",) if buffered else ()))
        done = subprocess.run(
            self.command(words), input=ledger.text, capture_output=True, text=True, timeout=within_s
        )
        assert done.returncode == 0, f"{done.returncode}: {done.stderr}{done.stdout[-500:]}"
        return Report.model_validate_json(done.stdout)


def build(scratch: Path) -> Path:
    """The program in `scratch`, compiled unless it is there already; runs on any Linux of this architecture."""
    content = hashlib.sha256(" ".join(COMPILER).encode())
    for path in (*sorted(HERE.glob("*.c")), *sorted(HERE.glob("*.h"))):
        content.update(path.read_bytes())
    program = scratch / f"integrity-{content.hexdigest()[:16]}"
    if not program.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(f".{os.getpid()}")
        subprocess.run((*COMPILER, "-o", partial, *sorted(HERE.glob("*.c"))), check=True)
        partial.replace(program)
    return program


def here(scratch: Path) -> Checker:
    """The program on this machine."""
    program = str(build(scratch))
    return Checker(lambda words: [program, *words])


def on_node(node: Node, scratch: Path) -> Checker:
    """The program put on a node. A `labctl reset` of its lab takes it away again."""
    with build(scratch).open("rb") as content:
        put = f"cat > {PLACE}.new && chmod 755 {PLACE}.new && mv {PLACE}.new {PLACE}"
        subprocess.run(ssh_argv(node, put), stdin=content, check=True, timeout=120)
    return Checker(lambda words: ssh_argv(node, shlex.join((PLACE, *words))))
