"""Disk faults that fail, tear, misdirect, change or lose what is written, on a real kernel.

The integrity workload says block by block what became of the data; dd reads the disk past device mapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import LabUnderTest
from tests.user import labctl
from tests.vm.disks import (
    BLOCKS,
    PER_BLOCK,
    TOP,
    Bench,
    Blocks,
    again,
    disk_bench,
    extents,
    fresh,
    header,
    left_as_it_was,
    sector_of,
)  # fmt: skip
from tests.vm.integrity import BLOCK, SECTOR, Checker

pytestmark = pytest.mark.vm

EIO = 5
FAILED = "fsync: Input/output error"


def written_twice_synced(path: str, offset: int, letter: str = "0x41") -> str:
    """A buffered write of a block, and two fsyncs of the same open file."""
    return f"xfs_io -c 'pwrite -q -S {letter} {offset} {BLOCK}' -c fsync -c fsync {path}"


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[Bench]:
    with disk_bench(lab, "w3") as one:
        yield one


@pytest.fixture(scope="module")
def checker(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Checker:
    return bench.checker(tmp_path_factory.mktemp("program"))


@pytest.fixture(autouse=True)
def nothing_stays(bench: Bench) -> Iterator[None]:
    with left_as_it_was(bench):
        yield
    bench.sh(f"rm -f {TOP}/victim {TOP}/other")


@pytest.fixture
def victim(checker: Checker) -> Blocks:
    return fresh(checker, "victim")


@pytest.fixture
def other(checker: Checker) -> Blocks:
    """A file that nothing may happen to."""
    return fresh(checker, "other")


# write_error


def test_writes_of_a_file_fail(bench: Bench, victim: Blocks, other: Blocks) -> None:
    mark = bench.log_mark()
    view = bench.inject("write_error", file=victim.path)
    assert bench.evidence(view).hits == 0
    failed = victim.write(20).failures
    assert [(f.what, f.errno) for f in failed] == [("write", EIO)] * 20
    found = bench.evidence(view)
    assert (found.hits, found.counters["failed_sectors"]) == (20, 20 * PER_BLOCK)
    assert bench.says(f"{written_twice_synced(victim.path, 5 * BLOCK)}; exit 1") == FAILED, "once, then 0"
    assert bench.evidence(view).hits == 21
    assert other.write(32).failures == ()
    victim.is_intact()
    assert bench.says(f"cat {victim.path} > /dev/null") == ""
    assert bench.seen(view) == [True, True]
    lines = bench.logged(mark, "I/O error, dev")
    assert lines and all(re.search(r"dev loop\d+, sector \d+ op 0x1:\(WRITE\)", line) for line in lines), lines
    sectors = [int(match[1]) for line in lines if (match := re.search(r"sector (\d+)", line))]
    own = extents(bench, victim.path)
    assert all(any(at <= s < at + count for _, at, count in own) for s in sectors), (sectors, own)
    ended = bench.recover(view)
    assert ended.data_lost == (f"21 writes of {21 * PER_BLOCK} sectors in all failed, and are not on the disk",)
    assert victim.write(BLOCKS).failures == ()
    for blocks in (victim, other):
        blocks.is_intact()


def test_writes_of_a_range_fail(bench: Bench, victim: Blocks) -> None:
    """Three blocks in the middle of the file, and one sector of another block."""
    start = sector_of(bench, victim.path, 10)
    view = bench.inject("write_error", range=f"{start}+{3 * PER_BLOCK}")
    write = f"dd if=/dev/zero of={victim.path} oflag=direct conv=notrunc bs={BLOCK} count=1 status=none seek="
    answers = [bool(bench.says(f"{write}{block}")) for block in (9, 10, 12, 13)]
    assert answers == [False, True, True, False]
    alone = bench.inject("write_error", range=f"{start + 5 * PER_BLOCK + 3}+1")
    small = write.replace(f"bs={BLOCK}", f"bs={SECTOR}")
    answers = [bool(bench.says(f"{small}{15 * PER_BLOCK + sector}")) for sector in (2, 3, 4)]
    assert answers == [False, True, False]
    assert bench.says(f"{write}15") != "", "a write of all of it fails for the sector"
    assert (bench.evidence(view).hits, bench.evidence(alone).hits) == (2, 2)
    assert len(bench.recover(view).data_lost) == len(bench.recover(alone).data_lost) == 1
    spoilt = victim.report()
    assert (spoilt.blocks("lost"), spoilt.blocks("torn")) == ((9, 13), (15,)), (
        "zeros arrived there, and only there"
    )
    (torn,) = spoilt.of("torn")
    assert [n for n, generation in enumerate(torn.generations) if generation] == [3], "the rest of it arrived"
    assert spoilt.counts == {"lost": 2, "torn": 1, "intact": BLOCKS - 3}


def test_writes_of_the_whole_disk_fail(bench: Bench, victim: Blocks, other: Blocks) -> None:
    """The journal cannot be written either: the file system stops, and is brought back."""
    mark = bench.log_mark()
    bench.sh(f"sync -f {TOP}", check=False)  # may tell of an error of another test that nobody has heard of yet
    written = "awk '{ print $7 }' /sys/block/dm-0/stat"
    view = bench.inject("write_error")
    before = int(bench.sh(written))
    assert bench.says(f"cat {other.path} > /dev/null; dd if={victim.path} iflag=direct of=/dev/null bs=1M") == ""
    failed = victim.write(20).failures
    assert {f.errno for f in failed if f.what == "write"} == {EIO}
    assert "Input/output error" in bench.says(f"{written_twice_synced(other.path, 0)}; exit 1")
    assert "Input/output error" in bench.says("dd if=/dev/zero of=/dev/mapper/data bs=4k count=1 oflag=direct "
                                              "seek=$((1 << 14)) conv=notrunc")  # fmt: skip
    found = bench.evidence(view)
    assert found.hits >= 17 and found.counters["failed_sectors"] == int(bench.sh(written)) - before
    assert bench.seen(view) == [True, True]
    assert bench.logged(mark, "Aborting journal|Detected aborted journal")
    ended = bench.recover(view)
    assert any("failed, and are not on the disk" in line for line in ended.data_lost), ended.data_lost
    bench.is_well()
    for blocks in (victim, other):
        blocks.is_intact()
        assert blocks.write(16).failures == ()


# flush_error


def test_flushes_fail_and_writes_arrive(bench: Bench, victim: Blocks) -> None:
    sector = sector_of(bench, victim.path, 0)
    mark = bench.log_mark()
    bench.sh(f"sync -f {TOP}")
    view = bench.inject("flush_error")
    hits = bench.evidence(view).hits
    assert FAILED in bench.says(f"{written_twice_synced(victim.path, 0)}; exit 1")
    assert bench.under(sector, 8) == "A" * 8, "past device mapper"
    assert {failure.what for failure in victim.write(16).failures} <= {"sync"}
    found = bench.evidence(view)
    assert found.hits > hits and found.counters["failed_flushes"] == found.hits
    assert bench.seen(view)[0]
    assert bench.logged(mark, r"I/O error, dev loop[0-9]+, .*phys_seg 0")
    victim.is_intact()
    assert bench.recover(view).data_lost == ()
    victim.is_intact()


# torn_write, misdirected_write


def test_blocks_tear(bench: Bench, victim: Blocks, other: Blocks) -> None:
    """The first three sectors of each block arrive. The page cache knows better, until it is dropped."""
    tables, mark = bench.tables(), bench.log_mark()
    told = labctl("inject", "torn_write", "--node", bench.node.name, "--file", victim.path, status=64).stderr
    assert "--accept-data-loss" in told and bench.tables() == tables
    view = bench.inject("torn_write", file=victim.path, arriving=3, accept_data_loss=True)
    assert victim.write(16).failures == ()
    buffered = Blocks(victim.checker, victim.job.model_copy(update={"direct": False}), victim.ledger)
    assert buffered.write(16).failures == () and other.write(16).failures == ()
    victim.ledger = buffered.ledger
    found = bench.evidence(view)
    assert found.counters["sectors_that_did_not_arrive"] == 32 * 5 and 17 <= found.hits <= 32
    cached = buffered.report(buffered=True)
    assert cached.blocks("torn") == tuple(range(16)), "what was written through the page cache is still there"
    ended = bench.recover(view)
    assert ended.data_lost == (f"160 sectors of {found.hits} writes did not arrive",)
    report = victim.report()
    assert report.counts == {"torn": 32, "intact": BLOCKS - 32} and report.blocks("torn") == tuple(range(32))
    for torn in report.of("torn"):
        assert torn.generations == (again(victim, torn.block),) * 3 + (1 + torn.block,) * 5 and torn.broken_promise
    other.is_intact()
    assert bench.logged(mark, "error|fail|corrupt") == []
    victim.write(BLOCKS)
    victim.is_intact()


def misdirected(bench: Bench, wanted: dict[str, Any]) -> list[tuple[int, int]]:
    """What the plan says: a block of the file, and the block where its writes land."""
    plan = bench.agent.plan("disk-plan", "misdirected_write", wanted)
    ((_, start, _),) = extents(bench, wanted["file"])
    lands = [(sector - start) // PER_BLOCK for sector in plan.target_data["detail"][2::3]]
    return list(zip((piece["offset"] // BLOCK for piece in plan.target_data["pieces"]), lands, strict=True))


def test_writes_land_elsewhere(bench: Bench, victim: Blocks, other: Blocks) -> None:
    """The writes stop before the last of the places where they land, so that only this one stays overwritten."""
    wanted = {"file": victim.path, "sectors": 3 * PER_BLOCK, "seed": 2, "accept_data_loss": True}
    pairs = misdirected(bench, wanted)
    count = max(place for _, place in pairs)
    assert len({block for pair in pairs for block in pair}) == 6 and all(meant < count for meant, _ in pairs)
    view = bench.inject("misdirected_write", **wanted)
    assert victim.write(count).failures == () and other.write(16).failures == ()
    for meant, place in pairs:
        assert header(bench, sector_of(bench, victim.path, meant)) == (meant, 1 + meant), "old content"
        latest = (place, again(victim, place)) if place < count else (meant, again(victim, meant))
        assert header(bench, sector_of(bench, victim.path, place)) == latest
    assert bench.evidence(view).counters == {"misdirected_writes": 3, "misdirected_sectors": 3 * PER_BLOCK}
    ended = bench.recover(view)
    assert ended.data_lost == ("24 sectors were overwritten by writes meant for another place",)
    report = victim.report()
    assert (report.blocks("lost"), report.blocks("misdirected")) == (
        tuple(sorted(meant for meant, _ in pairs)),
        (count,),
    )
    assert report.counts["intact"] == BLOCKS - 4
    (found,) = report.of("misdirected")
    assert {s.block for s in found.sectors} == {meant for meant, place in pairs if place == count}
    other.is_intact()


# silent_corruption

READS = """
import json, mmap, os, sys
path, below, device, sector, size = *sys.argv[1:4], *map(int, sys.argv[4:])
room = mmap.mmap(-1, size)
def direct(path, offset):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    assert os.preadv(fd, [room], offset) == size
    os.close(fd)
    return room[:]
true = direct(below, sector * 512)
def drop(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
found = {}
for turn in "once", "again":
    fd = os.open(path, os.O_RDONLY)
    drop(fd)
    found[f"mmap {turn}"] = mmap.mmap(fd, size, prot=mmap.PROT_READ)[:]
    drop(fd)
    found[f"read {turn}"] = os.read(fd, size)
    os.close(fd)
    found[f"O_DIRECT {turn}"] = direct(path, 0)
    found[f"device {turn}"] = direct(device, sector * 512)
def differs(text, part=4096):
    blocks = [at for at in range(0, size, part) if text[at : at + part] != true[at : at + part]]
    return [(n, text[n]) for at in blocks for n in range(at, at + part) if text[n] != true[n]]
print(json.dumps({way: differs(text) for way, text in found.items()}))
"""
"""Runs on a node: the bytes of a file in one extent that read differently from the disk below, by way of reading.
"""


def differences(bench: Bench, path: str) -> dict[str, list[tuple[int, int]]]:
    ((first, sector, count),) = extents(bench, path)
    assert (first, count) == (0, BLOCKS * PER_BLOCK)
    bench.sh(f"cat > /tmp/reads.py <<'END'\n{READS}\nEND")
    found = bench.data(f"python3 /tmp/reads.py {path} {bench.below} /dev/mapper/data {sector} {BLOCKS * BLOCK}")
    return {way: [(n, value) for n, value in changed] for way, changed in found.items()}


def announced(bench: Bench, wanted: dict[str, Any]) -> list[tuple[int, int]]:
    """What the plan says: byte of the file, which has one extent, and its new value."""
    plan = bench.agent.plan("disk-plan", "silent_corruption", wanted)
    ((_, start, _),) = extents(bench, wanted["file"])
    triples = zip(*(iter(plan.target_data["detail"]),) * 3, strict=True)
    return sorted(((sector - start) * SECTOR + nth - 1, value) for sector, nth, value in triples)


@pytest.mark.parametrize("permanent", [False, True], ids=["healed by a rewrite", "permanent"])
def test_reads_are_changed(bench: Bench, victim: Blocks, other: Blocks, permanent: bool) -> None:
    wanted = {"file": victim.path, "sectors": 4 * PER_BLOCK, "seed": 5, "permanent": permanent}
    changed = announced(bench, wanted)
    assert changed == announced(bench, wanted) != announced(bench, wanted | {"seed": 6})
    mark = bench.log_mark()
    view = bench.inject("silent_corruption", **wanted)
    hits = bench.evidence(view).hits
    found = differences(bench, victim.path)
    assert found == dict.fromkeys(found, changed) and len(found) == 8
    assert bench.evidence(view).hits >= hits + 8 * len(changed)
    report = victim.report()
    assert report.counts == {"corrupted": 4, "intact": BLOCKS - 4}
    places = [(f.block, s.wrong, f.block * BLOCK + n * SECTOR + s.first_wrong) for f in report.of("corrupted")
              for n, s in enumerate(f.sectors) if s.content == "garbage"]  # fmt: skip
    assert places == [(at // BLOCK, 1, at) for at, _ in changed], "one byte in a block"
    assert victim.write(BLOCKS).failures == ()
    assert victim.report().counts == ({"corrupted": 4, "intact": BLOCKS - 4} if permanent else {"intact": BLOCKS})
    other.is_intact()
    ended = bench.recover(view)
    assert ended.data_lost == () and bench.logged(mark, "error|fail|corrupt") == []
    victim.is_intact()


def test_writes_are_changed_for_good(bench: Bench, victim: Blocks, other: Blocks) -> None:
    wanted = {"file": victim.path, "sectors": 8 * PER_BLOCK, "seed": 5, "what": "writes", "accept_data_loss": True}
    changed = announced(bench, wanted)
    view = bench.inject("silent_corruption", **wanted)
    victim.is_intact()
    assert victim.write(BLOCKS).failures == () and other.write(16).failures == ()
    assert bench.evidence(view).hits == 8
    ended = bench.recover(view)
    assert ended.data_lost == ("8 writes were changed on their way to the disk",)
    report = victim.report()
    at = {n // BLOCK: n for n, _ in changed}
    assert len(report.of("corrupted")) >= 6, "one byte in 256 had the new value already"
    for found in report.findings:
        (bad,) = found.bad_sectors
        sector = found.sectors[bad]
        assert (found.kind, sector.wrong) == ("corrupted", 1)
        assert found.block * BLOCK + bad * SECTOR + sector.first_wrong == at[found.block]
    assert all(not changed for changed in differences(bench, victim.path).values()), "it is on the disk"
    other.is_intact()
    victim.write(BLOCKS)
    victim.is_intact()


# lost_flush, and what the power takes along


def test_a_cache_that_lies_loses_nothing_while_the_power_is_on(bench: Bench, victim: Blocks) -> None:
    told = labctl("inject", "lost_flush", "--node", bench.node.name, status=64).stderr
    assert "--accept-data-loss" in told
    sector = sector_of(bench, victim.path, 7)
    view = bench.inject("lost_flush", cache_mib=16, accept_data_loss=True)
    assert victim.write(BLOCKS).synced == 2 * BLOCKS
    assert header(bench, sector) == (7, 8), "acknowledged, and not on the disk"
    found = bench.evidence(view)
    assert found.hits >= BLOCKS and found.counters["bytes_only_in_memory"] >= BLOCKS * BLOCK
    victim.is_intact()
    assert bench.recover(view).data_lost == ()
    assert header(bench, sector) == (7, again(victim, 7))
    victim.is_intact()


def test_what_the_power_takes_along(bench: Bench, victim: Blocks, tmp_path: Path) -> None:
    """One power cut for all: torn blocks, flushes that were lies, and for comparison what was flushed in truth."""
    lost = fresh(victim.checker, "lost")
    kept = fresh(victim.checker, "kept")
    control = fresh(victim.checker, "control", top="/var/tmp", direct=False)
    tear = bench.inject("torn_write", file=victim.path, accept_data_loss=True)
    victim.write(16)
    lie = bench.inject("lost_flush", cache_mib=16, accept_data_loss=True)
    bench.sh(f"echo new > {TOP}/never; sync {TOP}/never")
    assert lost.write(32).failures == ()
    with control.checker.writing(control.job, control.ledger) as writer:
        writer.until_synced(2 * BLOCKS)
        bench.lab.provider.power_off(bench.node.name)
        control.ledger = writer.wait()
    bench.power_on()
    at_new_port = bench.checker(tmp_path)
    for blocks in (victim, lost, kept, control):
        blocks.checker = at_new_port
    for view in (tear, lie):
        ended = bench.look(view)
        assert (ended.state, ended.reason) == ("recovered", "restart") and ended.data_lost
        assert ended.data_lost[0].startswith("not known, the agent was not there to the end"), ended.data_lost
    assert bench.sh("dmesg | grep -c 'EXT4-fs (dm-0): recovery complete'") == "1"
    assert bench.sh(f"ls {TOP}/never", check=False) == "", "the file system is as old as its disk"
    report = victim.report()
    assert report.counts == {"torn": 16, "intact": BLOCKS - 16} and report.blocks("torn") == tuple(range(16))
    assert report.broken_promises == 16
    report = lost.report()
    assert report.counts == {"lost": 32, "intact": BLOCKS - 32} and report.blocks("lost") == tuple(range(32))
    assert report.broken_promises == 32
    assert all(f.generations == (1 + f.block,) * PER_BLOCK for f in report.findings)
    kept.is_intact()
    report = control.report()
    assert (report.broken_promises, report.of("lost"), report.of("corrupted")) == (0, (), ()), report.findings
    bench.sh(f"rm /var/tmp/control {TOP}/lost {TOP}/kept")
