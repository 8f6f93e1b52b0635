"""The oracle of pages: PostgreSQL's checksum, by another way than the program's, and what is made of it."""

from __future__ import annotations

import copy
import mmap
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from labctl.oracles.on_node import pages as on_node
from labctl.oracles.pages import Pages
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

ORACLE = Pages()


def checksum(page: bytes, block: int) -> int:
    """As the description in checksum_impl.h has it, a word at a time."""
    sums = list(on_node.OFFSETS)
    words = struct.unpack("<2048I", page[:8] + b"\0\0" + page[10:])
    for at, word in enumerate((*words, *([0] * 64))):
        mixed = sums[at % 32] ^ word
        sums[at % 32] = ((mixed * 16777619) & 0xFFFFFFFF) ^ (mixed >> 17)
    folded = block
    for one in sums:
        folded ^= one
    return folded % 65535 + 1


def page(rng: random.Random, block: int) -> bytes:
    text = bytearray(rng.randbytes(8192))
    text[14:16] = struct.pack("<H", 4000)
    text[8:10] = struct.pack("<H", checksum(bytes(text), block))
    return bytes(text)


def cluster(tmp_path: Path, pages: int = 300) -> Path:
    rng = random.Random(5)
    base = tmp_path / "base" / "16384"
    base.mkdir(parents=True)
    (tmp_path / "global").mkdir()
    (base / "16400").write_bytes(b"".join(page(rng, n) for n in range(pages)) + bytes(8192))
    (base / "16400.1").write_bytes(b"".join(page(rng, 131072 + n) for n in range(2)))
    (base / "16400_vm").write_bytes(page(rng, 0))
    (base / "pg_internal.init").write_bytes(b"no page at all")
    (base / "PG_VERSION").write_text("17\n")
    return tmp_path


def wrong(root: Path) -> dict[str, list[int]]:
    buffer = mmap.mmap(-1, on_node.AT_ONCE * on_node.PAGE)
    found = {Path(p).name: on_node.wrong_in(p, buffer) for p in on_node.relations(str(root))}
    assert {name: count for name, (count, _) in found.items()} == {"16400": 301, "16400.1": 2, "16400_vm": 1}
    return {name: blocks for name, (_, blocks) in found.items() if blocks}


def test_pages_that_are_right_and_pages_that_were_never_filled(tmp_path: Path) -> None:
    assert wrong(cluster(tmp_path)) == {}


@pytest.mark.parametrize(("at", "block"), [(0, 0), (8191, 0), (8, 0), (20, 0), (299 * 8192 + 5000, 299)])
def test_one_flipped_bit_anywhere(tmp_path: Path, at: int, block: int) -> None:
    file = cluster(tmp_path) / "base" / "16384" / "16400"
    text = bytearray(file.read_bytes())
    text[at] ^= 1
    file.write_bytes(text)
    assert wrong(tmp_path) == {"16400": [block]}


def test_a_page_in_another_place_is_wrong(tmp_path: Path) -> None:
    file = cluster(tmp_path) / "base" / "16384" / "16400"
    text = file.read_bytes()
    file.write_bytes(text[8192:16384] + text[:8192] + text[16384:])
    assert wrong(tmp_path) == {"16400": [0, 1]}


ANSWER = "## checksums\non\n## by_table\nflights\t320\nbookings\t55\n## by_index\nflights\t320\nbookings\t55\n"
DISK = '{"pages": 3900, "wrong": [], "unread": [], "late": 0}'


def look(answer: Any = ANSWER, disk: str = DISK) -> Any:
    return ORACLE.look(Told([("w2", "psql", answer), ("w2", "END-OF-PROGRAM", disk), ("w3", "psql", ANSWER),
                             ("w3", "END-OF-PROGRAM", DISK)]))  # fmt: skip


def test_a_database_that_can_be_read() -> None:
    seen = look()
    found = ORACLE.judge(seen, copy.deepcopy(seen), WINDOW)
    assert (found.outcome, found.reasons, found.measures) == (Outcome.PASS, (), {"pages": 7800})


@pytest.mark.parametrize(
    ("answer", "disk", "reason"),
    [
        (ANSWER, DISK.replace('"wrong": []', '"wrong": [["base/5/16400", [7]]]'),
         "w2: base/5/16400: wrong checksum of page 7"),
        (ANSWER, DISK.replace('"unread": []', '"unread": [["base/5/16400", "Input/output error"]]'),
         "w2: base/5/16400: Input/output error"),
        (ANSWER.replace("on\n", "off\n", 1), DISK, "w2: checksums are off"),
        (ANSWER.replace("bookings\t55\n## by", "bookings\t54\n## by"), DISK,
         "w2: bookings has 54 rows, its index 55"),
        ((3, "", "ERROR:  could not read blocks 3..3 in file \"base/5/16400\": Input/output error\n"), DISK,
         'w2: a new session: ERROR:  could not read blocks 3..3 in file "base/5/16400": Input/output error'),
        (ANSWER, DISK.replace("3900", "0"), "w2: there is no database at /srv/data/postgresql/17/main"),
    ],
)  # fmt: skip
def test_what_it_rejects(answer: Any, disk: str, reason: str) -> None:
    found = ORACLE.judge(look(), look(answer, disk), WINDOW)
    assert (found.outcome, found.reasons) == (Outcome.FAIL, (reason,))


def test_what_was_not_looked_at_is_not_known() -> None:
    found = ORACLE.judge(look(), look(disk=DISK.replace('"late": 0', '"late": 12')), WINDOW)
    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons == ("w2: 12 files were not looked at within 80 s",)
