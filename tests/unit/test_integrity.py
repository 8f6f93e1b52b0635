"""The integrity workload names every kind of damage exactly, and none where there is none."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vm import integrity
from tests.vm.integrity import BLOCK, SECTOR, Checker, Job, Kind, Ledger, Report

BLOCKS = 48
EIO = 5


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    return integrity.here(tmp_path_factory.mktemp("program"))


@dataclass(frozen=True)
class World:
    """Three moments of one run: every block acknowledged; many again; then some written and not acknowledged."""

    directory: Path
    checker: Checker
    job: Job
    ledger: Ledger
    old: bytes
    acked: bytes
    now: bytes

    def verify(self, content: bytes) -> Report:
        path = self.directory / "damaged"
        path.write_bytes(content)
        return self.checker.verify(str(path), self.ledger, buffered=True)


def block_of(image: bytes, block: int) -> bytes:
    return image[block * BLOCK : (block + 1) * BLOCK]


def generation(image: bytes, block: int) -> int:
    """What the first sector of a block says: the fifth word."""
    word: int = struct.unpack_from("<5Q", image, block * BLOCK)[4]
    return word


@pytest.fixture(scope="module", params=[1, 4], ids=["blocks alone", "four blocks a write"])
def world(request: pytest.FixtureRequest, checker: Checker, tmp_path_factory: pytest.TempPathFactory) -> World:
    directory = tmp_path_factory.mktemp("world")
    path = directory / "blocks"
    job = Job(path=str(path), blocks=BLOCKS, seed=5, span=request.param)
    slots = BLOCKS // job.span
    first = checker.write(job, writes=slots * 2)
    old = path.read_bytes()
    second = checker.write(job, slots, first)
    acked = path.read_bytes()
    third = checker.write(job.model_copy(update={"sync": "none"}), slots // 2, second)
    return World(directory, checker, job, third, old, acked, path.read_bytes())


def test_a_healthy_run_has_nothing_to_tell(world: World) -> None:
    report = world.verify(world.now)
    assert (report.counts, report.findings, report.broken_promises) == ({"intact": BLOCKS}, (), 0)
    assert world.ledger.begun == BLOCKS // world.job.span * 7 // 2
    assert world.ledger.synced == BLOCKS // world.job.span * 3
    assert world.ledger.failures == () and world.ledger.ended == "written"


def test_the_moments_differ_as_the_tests_below_need(world: World) -> None:
    pairs = [
        (generation(world.old, b), generation(world.acked, b), generation(world.now, b)) for b in range(BLOCKS)
    ]
    assert (
        any(a < b for a, b, _ in pairs)
        and any(b < c for _, b, c in pairs)
        and any(a == b == c for a, b, c in pairs)
    )


@dataclass(frozen=True)
class Damage:
    """What is done to one block. `sectors` where part of it is meant; `other` another block."""

    how: str
    sectors: frozenset[int] = frozenset(range(8))
    other: int = 0
    bit: int = 0


def spoil(world: World, image: bytearray, block: int, damage: Damage) -> None:
    start = block * BLOCK
    if damage.how == "flip":
        for sector in damage.sectors:
            image[start + sector * SECTOR + damage.bit // 8] ^= 1 << damage.bit % 8
        return
    source = {"old": block_of(world.old, block), "acked": block_of(world.acked, block), "zero": bytes(BLOCK),
              "other": block_of(world.now, damage.other)}[damage.how]  # fmt: skip
    for sector in damage.sectors:
        at = sector * SECTOR
        image[start + at : start + at + SECTOR] = source[at : at + SECTOR]


def expected(world: World, block: int, damage: Damage) -> tuple[Kind, bool]:
    """The kind, and whether a promise is broken: from the three images, not from the ledger."""
    must, done = generation(world.acked, block), generation(world.now, block)
    if damage.how == "flip":
        return "corrupted", True
    if damage.how == "other":
        return ("intact", False) if damage.other == block else ("misdirected", True)
    there = {"old": generation(world.old, block), "acked": must, "zero": 0}[damage.how]
    if there == done:
        return "intact", False
    if len(damage.sectors) < 8:
        return "torn", there < must
    return ("lost", True) if there < must else ("stale", False)


some_sectors = st.frozensets(st.integers(0, 7), min_size=1)
damages = st.one_of(
    st.builds(Damage, st.sampled_from(["old", "acked", "zero"]), some_sectors),
    st.builds(Damage, st.sampled_from(["old", "acked", "zero"])),
    st.builds(Damage, st.just("other"), some_sectors, st.integers(0, BLOCKS - 1)),
    st.builds(Damage, st.just("flip"), some_sectors, st.just(0), st.integers(0, SECTOR * 8 - 1)),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(0, BLOCKS - 1), damages, max_size=12))
def test_every_damage_is_named_and_nothing_else(world: World, planted: dict[int, Damage]) -> None:
    image = bytearray(world.now)
    for block, damage in planted.items():
        spoil(world, image, block, damage)
    wanted = {block: expected(world, block, damage) for block, damage in planted.items()}
    wanted = {block: answer for block, answer in wanted.items() if answer[0] != "intact"}
    report = world.verify(bytes(image))
    assert {f.block: (f.kind, f.broken_promise) for f in report.findings} == wanted
    assert report.broken_promises == sum(broken for _, broken in wanted.values())
    assert report.counts.get("intact", 0) == BLOCKS - len(wanted)
    for found in report.findings:
        damage = planted[found.block]
        assert (found.must, found.done) == (
            generation(world.acked, found.block),
            generation(world.now, found.block),
        )
        if found.kind in ("misdirected", "corrupted"):
            assert found.bad_sectors == tuple(sorted(damage.sectors))
        for number in damage.sectors:
            sector = found.sectors[number]
            if damage.how == "other":
                assert (sector.content, sector.block, sector.number) == ("elsewhere", damage.other, number)
                assert sector.generation == generation(world.now, damage.other)
            elif damage.how == "flip":
                assert (sector.content, sector.wrong, sector.first_wrong) == ("garbage", 1, damage.bit // 8)
                assert sector.generation == found.done
            elif damage.how == "zero":
                assert (sector.content, sector.generation) == ("blank", 0)


def test_a_file_that_became_shorter_has_lost_its_end(world: World) -> None:
    report = world.verify(world.now[: 40 * BLOCK + 3 * SECTOR])
    assert report.counts == {"intact": 40, "torn": 1, "lost": 7}
    assert report.blocks("torn") == (40,) and report.of("torn")[0].generations[3:] == (0,) * 5


def test_a_block_of_another_run_is_misdirected(world: World, checker: Checker) -> None:
    path = world.directory / "stranger"
    stranger = Job(path=str(path), blocks=BLOCKS)
    checker.write(stranger, BLOCKS)
    image = bytearray(world.now)
    image[7 * BLOCK : 8 * BLOCK] = block_of(path.read_bytes(), 7)
    (found,) = world.verify(bytes(image)).findings
    assert (found.kind, found.block) == ("misdirected", 7) and found.sectors[0].file == stranger.id


def test_bytes_of_nobody_are_corrupted(world: World) -> None:
    image = bytearray(world.now)
    image[7 * BLOCK : 8 * BLOCK] = b"\xff" * BLOCK
    (found,) = world.verify(bytes(image)).findings
    assert (found.kind, found.block, found.bad_sectors) == ("corrupted", 7, tuple(range(8)))
    assert all(sector.wrong > SECTOR // 2 for sector in found.sectors)


def test_a_stray_write_is_seen_where_nothing_was_written(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    ledger = checker.write(Job(path=str(path), blocks=64, pattern="sequential"), 10)
    assert checker.verify(str(path), ledger, buffered=True).counts == {"unwritten": 54, "intact": 10}
    image = bytearray(path.read_bytes())
    image[40 * BLOCK : 41 * BLOCK] = block_of(bytes(image), 4)
    path.write_bytes(image)
    (found,) = checker.verify(str(path), ledger, buffered=True).findings
    assert (found.kind, found.block, found.sectors[0].block) == ("misdirected", 40, 4)
    assert (found.must, found.broken_promise) == (0, False)


def test_findings_beyond_the_limit_are_counted(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "gone"
    ledger = checker.write(Job(path=str(path), blocks=64), 64)
    path.write_bytes(b"")
    report = checker.verify(str(path), ledger, buffered=True, limit=10)
    assert (len(report.findings), report.left_out, report.counts) == (10, 54, {"lost": 64})


def test_what_is_found_does_not_depend_on_a_lost_tail_of_the_ledger(world: World) -> None:
    """The host hears of a promise later than the disk has it, or never: what is newer than known is fine."""
    lines = world.ledger.text.splitlines(keepends=True)
    for kept in range(1, len(lines), 3):
        for torn in ("", "synced 9999999 99"):
            path = world.directory / "blocks"
            report = world.checker.verify(str(path), Ledger("".join(lines[:kept]) + torn), buffered=True)
            assert report.findings == () and report.counts["intact"] == BLOCKS


@pytest.mark.parametrize("ledger", ["", "intent 1 2 3\n", "run 2 file 1\n", "run 1 file 1 seed 1 blocks 0"])
def test_a_ledger_that_says_nothing_is_refused(checker: Checker, tmp_path: Path, ledger: str) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"")
    with pytest.raises(AssertionError, match="64: integrity: "):
        checker.verify(str(path), Ledger(ledger), buffered=True)


def injected(checker: Checker, rule: str) -> Checker:
    """The program with some of its calls failed by strace."""
    strace = shutil.which("strace")
    assert strace, "scripts/setup kernel installs it"
    call = rule.partition(":")[0]
    prefix = (strace, "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={rule}")
    return Checker(lambda words: [*prefix, *checker.command(words)])


def test_what_cannot_be_read(world: World) -> None:
    """Call 6 reads block 5; after an error each of its sectors is tried: all fail, or two, or none any more."""
    cases = {"6..14": tuple(range(8)), "6..8": (0, 1), "6": ()}
    for when, bad in cases.items():
        failing = injected(world.checker, f"pread64:error=EIO:when={when}")
        report = failing.verify(str(world.directory / "blocks"), world.ledger, buffered=True)
        (found,) = report.findings
        assert (found.kind, found.block, found.errno, found.broken_promise) == ("unreadable", 5, EIO, True)
        assert found.bad_sectors == bad and report.counts == {"unreadable": 1, "intact": BLOCKS - 1}


def test_a_failed_sync_promises_nothing(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    job = Job(path=str(path), blocks=64)
    first = checker.write(job, 64)
    old = path.read_bytes()
    ledger = injected(checker, "fsync:error=EIO:when=2").write(job, 64, first)
    (failure,) = ledger.failures
    assert (failure.what, failure.first, failure.last, failure.errno) == ("sync", 81, 96, EIO)
    assert [(ack.first, ack.last) for ack in ledger.acks][4:] == [(65, 80), (97, 112), (113, 128)]
    new = path.read_bytes()
    inside = [b for b in range(64) if 81 <= generation(new, b) <= 96]
    path.write_bytes(b"".join(block_of(old if b in inside else new, b) for b in range(64)))
    report = checker.verify(str(path), ledger, buffered=True)
    lost = report.blocks("lost")  # had a write of the acknowledged batch before, too
    assert set(report.blocks("stale")) | set(lost) == set(inside) and report.blocks("stale")
    assert report.broken_promises == len(lost)


def test_a_failed_write_promises_nothing(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    job = Job(path=str(path), blocks=64)
    ledger = injected(checker, "pwrite64:error=EIO:when=6").write(job, 64)
    (failure,) = ledger.failures
    assert (failure.what, failure.first, failure.errno) == ("write", 6, EIO)
    report = checker.verify(str(path), ledger, buffered=True)
    assert (report.findings, report.counts) == ((), {"intact": 63, "unwritten": 1})


def test_it_gives_up_when_nothing_works(checker: Checker) -> None:
    ledger = checker.write(Job(path="/dev/full", blocks=16), 100_000)
    assert ledger.ended == "errors" and {f.what for f in ledger.failures} == {"write", "sync"}
    assert ledger.synced == 0 and 1000 < len(ledger.failures) < 1200


@pytest.fixture
def endless(checker: Checker, tmp_path: Path) -> Iterator[tuple[integrity.Writer, str]]:
    path = str(tmp_path / "blocks")
    with checker.writing(Job(path=path, blocks=32, every=4, sync="fdatasync")) as writer:
        yield writer, path


def test_it_goes_on_until_told(checker: Checker, endless: tuple[integrity.Writer, str]) -> None:
    writer, path = endless
    writer.until_synced(100)
    ledger = writer.stop()
    assert ledger.ended == "told" and ledger.synced == ledger.begun >= 100
    assert checker.verify(path, ledger, buffered=True).counts == {"intact": 32}
    times = [ack.at_s for ack in ledger.acks]
    assert times == sorted(times) and all(ack.took_s >= 0 for ack in ledger.acks) and ledger.slowest_write_s >= 0


def test_a_killed_writer_leaves_a_ledger_that_holds(
    checker: Checker, endless: tuple[integrity.Writer, str]
) -> None:
    writer, path = endless
    writer.until_synced(50)
    writer.process.kill()
    ledger = writer.wait()
    assert ledger.ended == "" and ledger.synced >= 50
    report = checker.verify(path, ledger, buffered=True)
    assert report.broken_promises == 0 and not report.of("lost")
    with checker.writing(Job(path=path, blocks=32, id=_id_of(ledger)), ledger) as again:
        again.until_synced(ledger.begun + 64)
    assert checker.verify(path, again.ledger, buffered=True).counts == {"intact": 32}


def _id_of(ledger: Ledger) -> int:
    return int(ledger.text.split()[3])


def test_the_ledger_can_be_a_file(checker: Checker, tmp_path: Path) -> None:
    job = Job(path=str(tmp_path / "blocks"), blocks=16)
    argv = [*checker.command(job.words(writes=32, done=0)), "--ledger", str(tmp_path / "ledger")]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    ledger = Ledger((tmp_path / "ledger").read_text())
    assert done.stdout == "" and (ledger.synced, ledger.ended) == (32, "written")
    assert checker.verify(job.path, ledger, buffered=True).counts == {"intact": 16}


def test_past_the_page_cache(checker: Checker, tmp_path: Path) -> None:
    """Direct I/O, where the file system of this machine's scratch space has it."""
    job = Job(path=str(tmp_path / "blocks"), blocks=64, direct=True, span=8)
    ledger = checker.write(job, 40)
    assert checker.verify(job.path, ledger).counts == {"intact": 64}


def test_an_offset_leaves_what_is_before_it(checker: Checker, tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    job = Job(path=str(path), blocks=8, offset=5 * BLOCK)
    ledger = checker.write(job, 8)
    content = path.read_bytes()
    assert len(content) == 13 * BLOCK and content[: 5 * BLOCK] == bytes(5 * BLOCK)
    assert checker.verify(job.path, ledger, buffered=True).counts == {"intact": 8}
