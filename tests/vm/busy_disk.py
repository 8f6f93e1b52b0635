"""Runs on a node: writes blocks of a file, reads them back past the page cache and compares, until told to end.

Arguments: the file, and the path whose appearance means the end. Prints how many blocks it compared.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from pathlib import Path

PATH, END = sys.argv[1], Path(sys.argv[2])
BLOCK, BLOCKS = 4096, 2048


def main() -> None:
    fd = os.open(PATH, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    buffered = os.open(PATH, os.O_RDWR)
    os.pwrite(buffered, bytes(BLOCK * BLOCKS), 0)
    os.fsync(buffered)
    room = mmap.mmap(-1, BLOCK)
    compared = 0
    dice = random.Random(1)
    while not END.exists():
        for _ in range(16):
            number = dice.randrange(BLOCKS)
            data = dice.randbytes(16) * (BLOCK // 16)
            if dice.random() < 0.5:
                room[:] = data
                os.pwritev(fd, [room], number * BLOCK)
            else:
                os.pwrite(buffered, data, number * BLOCK)
                os.fdatasync(buffered)
            room[:] = bytes(BLOCK)
            os.preadv(fd, [room], number * BLOCK)
            if room[:] != data:
                sys.exit(f"block {number} is not what was written")
            compared += 1
    print(compared)


main()
