"""A program of a node that uses memory: all of its pages in turn, and some that it takes and gives back each time.

Arguments: a name, MiB, and how many children do it instead. Turns are counted in /run/NAME.count, or those of
each child in /run/NAME-NUMBER.count.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

PAGE = 4096
STEP = 256 * PAGE


def taken(size: int) -> mmap.mmap:
    """Anonymous memory in pages of the usual size."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    return area


def touch(area: mmap.mmap, value: int) -> None:
    """Write to each page of it; not zeros, which swap would not take."""
    for at in range(0, len(area), STEP):
        count = min(256, (len(area) - at) // PAGE)
        area[at : at + count * PAGE : PAGE] = bytes((value,)) * count


def main() -> None:
    """For ever."""
    name, size, children = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3])
    while children and os.fork():
        children -= 1
    if int(sys.argv[3]) and not children:  # the parent only waits for its children, and has little
        os.wait()
        while True:
            time.sleep(60)
    if children:
        name = f"{name}-{children}"
    area, turns = taken(size), 0
    with open(f"/run/{name}.count", "w") as count:  # noqa: PTH123
        while True:
            touch(area, turns % 255 + 1)
            more = taken(1 << 20)
            touch(more, 1)
            more.close()
            turns += 1
            count.seek(0)
            count.write(f"{turns}\n")
            count.flush()
            time.sleep(0.05)


if __name__ == "__main__":
    main()
