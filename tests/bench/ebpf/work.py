"""Work that only needs a processor: a guest's time for it over this machine's is what emulation costs."""

from __future__ import annotations


def python_work() -> int:
    """The same in a guest and on the machine itself."""
    total = 0
    for n in range(300_000):
        total = (total * 31 + n) % 1_000_003
    return total
