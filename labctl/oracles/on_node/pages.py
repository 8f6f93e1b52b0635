"""Checks the checksum of every page of a PostgreSQL cluster that runs, as it is on the disk, not in any cache.

The checksum is that of PostgreSQL (src/include/storage/checksum_impl.h): 32 sums side by side over the 32-bit
words of a page, each of them a Fowler-Noll-Vo hash with a shift mixed in. Words of many pages are lanes of one
large number here, so that an interpreter is fast enough. A page that is written while it is read is read again.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sys
import time
from collections.abc import Iterator

PAGE, SUMS, ROW = 8192, 32, 128
PRIME = 16777619
SEGMENT = 131072
AT_ONCE = 128
OFFSETS = (
    0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2, 0x83E13D2C,
    0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C, 0xF718902A, 0x0B1C9CDB,
    0xE58F764B, 0x187636BC, 0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979, 0xCCA6C0B2, 0x304A0979, 0x85AA43D4,
    0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E, 0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756,
)  # fmt: skip
START = b"".join(n.to_bytes(4, "little") for n in OFFSETS)
RELATION = re.compile(r"^[0-9]+(_(fsm|vm|init))?(\.[0-9]+)?$")


def repeated(word: int, lanes: int) -> int:
    return int.from_bytes(word.to_bytes(8, "little") * lanes, "little")


def sums(pages: list[bytes]) -> list[int]:
    """The sums of pages, before their place is mixed in. The field of the checksum counts as nothing."""
    count = len(pages)
    lanes = count * SUMS // 2  # every other word: a product needs the room of two
    low, shifted = repeated(0xFFFFFFFF, lanes), repeated(0x7FFF, lanes)
    state = int.from_bytes(START * count, "little")
    halves = [state & low, (state >> 32) & low]
    blank = [page[:8] + b"\0\0" + page[10:ROW] for page in pages]
    for row in range(PAGE // ROW + 2):
        if row >= PAGE // ROW:
            word = 0
        else:
            text = b"".join(blank) if row == 0 else b"".join([p[row * ROW : row * ROW + ROW] for p in pages])
            word = int.from_bytes(text, "little")
        for half in (0, 1):
            mixed = halves[half] ^ ((word >> 32 * half) & low)
            halves[half] = ((mixed * PRIME) & low) ^ ((mixed >> 17) & shifted)
    both = (halves[0] ^ halves[1]).to_bytes(lanes * 8, "little")
    found = []
    for at in range(0, len(both), SUMS * 4):
        one = int.from_bytes(both[at : at + SUMS * 4], "little")
        for width in (512, 256, 128, 64):
            one = (one ^ (one >> width)) & ((1 << width) - 1)
        found.append(one & 0xFFFFFFFF)
    return found


def bad(pages: list[bytes], first: int) -> list[int]:
    """Which of these pages, the first of which is block `first`, have another checksum than they say."""
    used = [(n, page) for n, page in enumerate(pages) if page[14:16] != b"\0\0"]  # others were never filled
    if not used:
        return []
    found = zip(used, sums([page for _, page in used]), strict=True)
    return [n for (n, page), s in found if ((s ^ (first + n)) % 65535) + 1 != int.from_bytes(page[8:10], "little")]


def read(fd: int, buffer: mmap.mmap, block: int, count: int) -> list[bytes]:
    got = os.preadv(fd, [memoryview(buffer)[: count * PAGE]], block * PAGE)
    text = buffer[:got]
    return [text[at : at + PAGE] for at in range(0, got - got % PAGE, PAGE)]


def wrong_in(path: str, buffer: mmap.mmap) -> tuple[int, list[int]]:
    """How many pages a file has, and the blocks of it that are wrong again and again."""
    suffix = path.rpartition(".")[2]
    segment = int(suffix) if suffix.isdigit() and "." in os.path.basename(path) else 0  # noqa: PTH119
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    count, wrong = 0, []
    try:
        while pages := read(fd, buffer, count, AT_ONCE):
            suspects = [count + n for n in bad(pages, segment * SEGMENT + count)]
            for block in suspects:
                for _ in range(5):
                    again = read(fd, buffer, block, 1)
                    if not again or not bad(again, segment * SEGMENT + block):
                        break
                    time.sleep(0.1)
                else:
                    wrong.append(block)
            count += len(pages)
    finally:
        os.close(fd)
    return count, wrong


def relations(root: str) -> Iterator[str]:
    for below in ("global", "base"):
        for where, _, names in os.walk(os.path.join(root, below)):  # noqa: PTH118
            yield from (os.path.join(where, name) for name in sorted(names) if RELATION.match(name))  # noqa: PTH118


def main() -> None:
    given = json.loads(sys.argv[1])
    root, deadline = given["path"], time.monotonic() + given["within_s"]
    buffer = mmap.mmap(-1, AT_ONCE * PAGE)
    wrong, unread, pages = [], [], 0
    late = 0
    for path in relations(root):
        if time.monotonic() > deadline:
            late += 1
            continue
        try:
            count, blocks = wrong_in(path, buffer)
        except FileNotFoundError:
            continue  # a table that was just dropped or rewritten
        except OSError as error:
            unread.append([os.path.relpath(path, root), os.strerror(error.errno or 0)])
            continue
        pages += count
        if blocks:
            wrong.append([os.path.relpath(path, root), blocks[:10]])
    print(json.dumps({"pages": pages, "wrong": wrong[:20], "unread": unread[:20], "late": late}))


if __name__ == "__main__":
    main()
