"""latent_sector_error on real kernels and file systems, measured with tools that are not ours."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import UsageError
from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from node_agent.injection import InjectionView
from tests.lab import LabUnderTest, ssh
from tests.user import until

pytestmark = pytest.mark.vm

BLOCK = 4096
FILE = "/srv/data/victim"
EVERY_READ = Path(__file__).with_name("every_read.py")
BUSY = Path(__file__).with_name("busy_disk.py")
NUMBERS = itertools.count(1)
FILL = f'for (block = 0; block < 256; block++) for (i = 0; i < {BLOCK // 8}; i++) printf "%07d\\n", block'
MAKE = f"awk 'BEGIN {{ {FILL} }}' > {FILE} && sync {FILE}"
"""A file of 1 MiB in which each block is full of its own number."""


@dataclass
class Bench:
    """A node with a file to spoil. `kind` is its file system."""

    node: Node
    agent: AgentClient
    kind: str
    disk: str = ""
    mine: list[str] = field(default_factory=list)

    def sh(self, script: str, check: bool = True) -> str:
        return ssh(self.node, script, check=check).stdout.strip()

    def fails(self, script: str) -> str:
        """Standard error of a command that must fail."""
        done = ssh(self.node, script, check=False)
        assert done.returncode != 0, f"{script} went well"
        return done.stderr

    def inject(self, **parameters: Any) -> InjectionView:
        name = f"lse-{next(NUMBERS)}"
        view = self.agent.apply(name, "latent_sector_error", parameters, 600)
        self.mine.append(name)
        assert view.state == "active" and view.evidence is not None and view.evidence.armed
        return view

    def look(self, view: InjectionView) -> InjectionView:
        (now,) = self.agent.list(ids=(view.id,)).injections
        assert now.evidence is not None
        return now

    def recover(self, *views: InjectionView) -> None:
        names = tuple(v.id for v in views) or tuple(self.mine)
        if names:
            answer = self.agent.recover(names)
            assert {i.state for i in answer.injections} == {"recovered"}, answer.injections

    def offset(self, view: InjectionView) -> int:
        match = re.search(r"at byte (\d+)", view.target)
        assert match
        return int(match[1])

    def sector(self, view: InjectionView) -> int:
        match = re.search(r"sector (\d+)\+", view.target)
        assert match
        return int(match[1])

    def direct(self, offset: int) -> str:
        return f"dd if={FILE} iflag=direct bs={BLOCK} skip={offset // BLOCK} count=1 status=none"

    def rewrite(self, offset: int, letter: str, *flags: str) -> None:
        """Fill the block with a letter."""
        how = ",".join(flags)
        self.sh(f"head -c {BLOCK} /dev/zero | tr '\\0' {letter} | dd of={FILE} bs={BLOCK} count=1 status=none "
                f"iflag=fullblock seek={offset // BLOCK} conv=notrunc{',fsync' if not how else ''} "
                f"{f'oflag={how}' if how else ''}")  # fmt: skip

    def below(self, sector: int) -> str:
        """The first bytes at a sector of the disk itself, past device mapper."""
        return self.sh(f"dd if={self.disk} iflag=direct bs=512 skip={sector} count=8 status=none | head -c 8")

    def every_read(self, offset: int) -> dict[str, Any]:
        answers: dict[str, Any] = json.loads(self.sh(f"python3 /tmp/every_read.py {FILE} {offset}"))
        return answers


@pytest.fixture(scope="module", params=["ext4", pytest.param("xfs", marks=pytest.mark.thorough)])
def bench(request: pytest.FixtureRequest, lab: LabUnderTest) -> Iterator[Bench]:
    """Node w3, whose data disk has the file system wanted."""
    lab.reset()
    node = lab.node("w3")
    with connect(node, lab.authority) as transport:
        one = Bench(node, AgentClient(transport), request.param)
        if request.param != "ext4":
            one.sh(
                f"umount /srv/data; mkfs.{request.param} -q -f /dev/mapper/data; mount /dev/mapper/data /srv/data"
            )
        one.disk = one.sh("echo /dev/$(ls /sys/block/dm-0/slaves)")
        one.sh(MAKE)
        for script in (EVERY_READ, BUSY):
            one.sh(f"cat > /tmp/{script.name} <<'END'\n{script.read_text()}\nEND")
        yield one
    lab.reset()


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    """Each test ends with a node as it was: tables, loop devices, log of the agent."""
    before = bench.sh("dmsetup table; losetup --list --noheadings")
    bench.mine.clear()
    yield
    bench.recover()
    assert bench.agent.residue() == ()
    assert bench.sh("dmsetup table; losetup --list --noheadings") == before
    bench.sh(f"cat {FILE} > /dev/null")
    bench.sh(f"rm -f {FILE}.copied; {MAKE}")


def test_one_block_fails_for_everybody_and_its_neighbours_are_well(bench: Bench) -> None:
    view = bench.inject(file=FILE, seed=4)
    offset, sector = bench.offset(view), bench.sector(view)
    assert view.evidence is not None and view.evidence.hits >= 1
    assert "Input/output error" in bench.fails(f"cat {FILE} > /dev/null")
    assert bench.sh(f"cat {FILE} 2>/dev/null | wc -c", check=False) == str(offset), "all before it is read"
    assert "Input/output error" in bench.fails(bench.direct(offset))
    for near in (offset - BLOCK, offset + BLOCK):
        assert bench.sh(bench.direct(near)).startswith(f"{near // BLOCK:07d}")
    answers = bench.every_read(offset)
    # XFS makes a copy that shares the bad sectors, and reads nothing for it
    copied = {"copy_file_range": BLOCK} if bench.kind == "xfs" else {}
    assert answers == dict.fromkeys(answers, "EIO") | {"mmap": "SIGBUS"} | copied
    assert len(answers) == 10
    log = bench.sh("dmesg | grep 'I/O error' | tail -20")
    assert re.search(rf"I/O error, dev loop\d+, sector {sector} op 0x0:\(READ\)", log), log
    now = bench.look(view)
    assert now.evidence is not None and now.evidence.hits >= view.evidence.hits + len(answers) - len(copied)
    assert now.evidence.log and f"sector {sector}" in now.evidence.log[0]
    bench.recover(view)
    assert bench.every_read(offset) == dict.fromkeys(answers, BLOCK)
    assert bench.sh(bench.direct(offset)).startswith(f"{offset // BLOCK:07d}")


@pytest.mark.parametrize("flags", [("direct",), ()], ids=["direct", "buffered and fsync"])
def test_a_rewrite_heals_at_once_and_lands_on_the_disk(bench: Bench, flags: tuple[str, ...]) -> None:
    view = bench.inject(file=FILE, seed=9)
    offset, sector = bench.offset(view), bench.sector(view)
    bench.fails(bench.direct(offset))
    bench.rewrite(offset, "H", *flags)
    assert bench.sh(f"{bench.direct(offset)} | head -c 8") == "HHHHHHHH"
    assert bench.below(sector) == "HHHHHHHH", "the true place has it while the fault stands"
    now = bench.look(view)
    assert now.evidence is not None and now.evidence.counters["healed_blocks"] == 1
    hits = now.evidence.hits
    assert set(bench.every_read(offset).values()) == {BLOCK}
    later = bench.look(view).evidence
    assert later is not None and later.hits == hits, "what is healed is not counted"
    bench.recover(view)
    assert bench.sh(f"{bench.direct(offset)} | head -c 8") == "HHHHHHHH"


def test_part_of_a_page_cannot_be_written_because_the_rest_cannot_be_read(bench: Bench) -> None:
    view = bench.inject(file=FILE, seed=2)
    offset = bench.offset(view)
    write = f"echo short | dd of={FILE} bs=1 seek={offset + 10} conv=notrunc status=none"
    assert "Input/output error" in bench.fails(write)
    bench.rewrite(offset, "W", "direct")
    bench.sh(write)


def test_a_direct_write_of_one_sector_breaks_the_block_until_recovery(bench: Bench) -> None:
    view = bench.inject(file=FILE, seed=2)
    offset = bench.offset(view)
    small = f"dd if=/dev/zero of={FILE} bs=512 count=1 seek={offset // 512} conv=notrunc oflag=direct status=none"
    assert "Input/output error" in bench.fails(small)
    now = bench.look(view).evidence
    assert now is not None and any("write of less than the block failed" in note for note in now.notes), now
    bench.recover(view)
    assert bench.sh(bench.direct(offset)).startswith(f"{offset // BLOCK:07d}"), "nothing of it was written"


def test_permanent_sectors_take_writes_and_go_on_failing(bench: Bench) -> None:
    view = bench.inject(file=FILE, seed=6, permanent=True)
    offset, sector = bench.offset(view), bench.sector(view)
    assert view.backend == "dm-flakey"
    bench.fails(bench.direct(offset))
    bench.rewrite(offset, "P", "direct")
    assert "Input/output error" in bench.fails(bench.direct(offset))
    assert bench.below(sector) == "PPPPPPPP"
    bench.recover(view)
    assert bench.sh(f"{bench.direct(offset)} | head -c 8") == "PPPPPPPP"


def test_bursts_fail_and_pass_in_turn(bench: Bench) -> None:
    view = bench.inject(file=FILE, seed=1, schedule="burst:2/2")
    read = f"{bench.direct(bench.offset(view))} >/dev/null 2>&1 && echo well || echo bad"
    answers = bench.sh(f"for i in $(seq 80); do {read}; sleep 0.1; done").split()
    runs = [name for name, _ in itertools.groupby(answers)]
    assert len(runs) >= 3 and {"well", "bad"} == set(runs), answers
    now = bench.look(view).evidence
    assert (
        now is not None
        and now.hits >= answers.count("bad")
        and now.counters["passed_reads"] >= answers.count("well")
    )


def test_many_sectors_and_two_injections_compose(bench: Bench) -> None:
    first = bench.inject(file=FILE, seed=1, sectors=64)
    second = bench.inject(file=FILE, seed=40, permanent=True)
    copy = bench.sh(f"dd if={FILE} of=/tmp/copy bs={BLOCK} iflag=direct conv=noerror,sync 2>&1", check=False)
    assert copy.count("Input/output error") == 9, copy
    with pytest.raises(UsageError, match=first.id):
        bench.inject(file=FILE, seed=1, sectors=64)
    bench.recover(first)
    bench.fails(bench.direct(bench.offset(second)))
    assert len(bench.look(second).id) and bench.agent.residue() != ()
    bench.recover(second)


def test_a_range_and_a_single_sector_of_it(bench: Bench) -> None:
    """Sector 3 of a block, through the disk: the rest of the block is well."""
    sector = bench.sector(bench.inject(file=FILE, seed=12)) + 3
    bench.recover()
    view = bench.inject(range=f"{sector}+1")
    one = "dd if=/dev/mapper/data iflag=direct bs=512 count=1 status=none skip="
    assert "Input/output error" in bench.fails(f"{one}{sector} > /dev/null")
    bench.sh(f"{one}{sector - 1} > /dev/null; {one}{sector + 1} > /dev/null")
    assert "Input/output error" in bench.fails(f"cat {FILE} > /dev/null")
    assert view.target.startswith(f"sector {sector}+1 of data")


def test_with_no_target_it_takes_a_file_and_says_which(bench: Bench) -> None:
    view = bench.inject(seed=3)
    path = view.target.split(" at byte ")[0]
    assert path.startswith("/srv/data/")
    assert "Input/output error" in bench.fails(f"cat {path} > /dev/null")


def test_a_file_that_is_replaced_meanwhile(bench: Bench) -> None:
    view = bench.inject(file=FILE, seed=3)
    bench.sh(f"head -c 1048576 /dev/zero > {FILE}.new; sync {FILE}.new; mv {FILE}.new {FILE}")
    bench.sh(f"cat {FILE} > /dev/null")
    now = bench.look(view).evidence
    assert now is not None and now.armed and any("another file now" in note for note in now.notes)
    bench.recover(view)


MAPS_IT = f"""
import mmap, time
file = open('{FILE}', 'rb')
view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(view[::4096])
open('/tmp/mapped', 'w')
time.sleep(600)
"""


def test_a_mapped_page_stays_and_evidence_says_so(bench: Bench) -> None:
    bench.sh(f"cat > /tmp/maps_it.py <<'END'\n{MAPS_IT}\nEND\nrm -f /tmp/mapped")
    pid = bench.sh("nohup python3 /tmp/maps_it.py > /dev/null 2>&1 & echo $!")
    try:
        until("all of it is mapped", lambda: bench.sh("ls /tmp/mapped", check=False) != "")
        view = bench.inject(file=FILE, seed=3)
        assert view.evidence is not None and view.evidence.hits >= 1
        assert any("the page cache has 1 of the bad blocks" in note for note in view.evidence.notes)
        assert bench.sh(f"cat {FILE} | wc -c") == "1048576", "readers through the cache see the page that stayed"
        bench.fails(bench.direct(bench.offset(view)))
    finally:
        bench.sh(f"kill {pid}")
    drop_and_read = f"sysctl -q vm.drop_caches=1; cat {FILE} > /dev/null"
    until("the page is gone", lambda: ssh(bench.node, drop_and_read, check=False).returncode != 0)


@pytest.mark.thorough
def test_under_load_nothing_else_is_hurt_and_cycles_leave_nothing(bench: Bench) -> None:
    """A process writes, reads back and compares all the while; twenty swaps each way, with udev looking on."""
    load = subprocess.Popen(
        ["ssh", "-F", "/dev/null", "-o", f"UserKnownHostsFile={bench.node.known_hosts}", "-o", "BatchMode=yes",
         "-i", str(bench.node.ssh_key), "-p", str(bench.node.ssh_port),
         f"{bench.node.ssh_user}@{bench.node.address}", "--", "python3 /tmp/busy_disk.py /srv/data/busy /tmp/end"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until("it writes", lambda: bench.sh("test -s /srv/data/busy && echo yes", check=False) == "yes")
        for seed in range(20):
            view = bench.inject(file=FILE, seed=seed)
            bench.fails(bench.direct(bench.offset(view)))
            bench.recover(view)
            bench.sh(bench.direct(bench.offset(view)))
    finally:
        bench.sh("touch /tmp/end")
        out, err = load.communicate(timeout=60)
        bench.sh("rm -f /tmp/end /srv/data/busy")
    assert load.returncode == 0, err
    assert int(out) > 100, "it wrote and compared all the while"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"file": "/etc/hostname"}, "disk of the system"),
        ({"file": "/srv/data"}, "is a directory"),
        ({"file": "/srv/data/hole"}, "hole"),
        ({"file": "/srv/data/reserved"}, "unwritten"),
        ({"file": FILE, "sectors": 512, "schedule": "every:2"}, "bad by its place"),
        ({"range": "99999999+8"}, "the disk at"),
    ],
)
def test_refusals(bench: Bench, parameters: dict[str, Any], text: str) -> None:
    bench.sh("truncate -s 1M /srv/data/hole; fallocate -l 1M /srv/data/reserved; echo fresh > /srv/data/fresh")
    with pytest.raises(UsageError, match=text):
        bench.inject(**parameters)
    bench.sh("rm /srv/data/hole /srv/data/reserved /srv/data/fresh")


def test_what_was_just_written_has_a_place(bench: Bench) -> None:
    """Without a flush FIEMAP would say sector 0, which is the superblock."""
    bench.sh("head -c 262144 /dev/urandom > /srv/data/fresh")
    view = bench.inject(file="/srv/data/fresh")
    assert bench.sector(view) > 8
    bench.recover(view)
    bench.sh("rm /srv/data/fresh")
