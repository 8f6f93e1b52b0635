"""Keeps the connection tracking table full. Run as a script by an injection.

Settings: `leave`, how many entries others can still have. The kernel ends what this has made by itself: each entry
has a timeout, which is renewed as long as this runs.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from node_agent.workers.conntrack import AT_ONCE, Table, count, most
from node_agent.workers.serving import RefusedError, main_of, serve

_EVERY_S = 0.1
LIFETIME_S = 300
"""An entry lives so long; it is renewed when half of that is over."""


class Filler:
    """The entries that are there, in bundles; the next to be renewed first."""

    def __init__(self, table: Table, leave: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._leave, self._clock = table, leave, clock
        self._bundles: deque[tuple[float, list[int]]] = deque()
        self._next = 0

    @property
    def held(self) -> int:
        """How many there are."""
        return sum(len(numbers) for _, numbers in self._bundles)

    def fill(self) -> None:
        """Make as many entries as are missing, and renew those whose time comes. Raises OSError."""
        missing = most() - self._leave - count()
        while missing > 0:
            numbers = list(range(self._next, self._next + min(missing, AT_ONCE)))
            self._next += len(numbers)
            made = self._put(numbers, new=True)
            if not made:  # others were faster
                break
            missing -= made
        while self._bundles and self._bundles[0][0] <= self._clock():
            self._put(self._bundles.popleft()[1], new=False)

    def _put(self, numbers: list[int], *, new: bool) -> int:
        answers = self._table.put(numbers, LIFETIME_S, new=new)
        bad = {one for one in answers if one} - {errno.EEXIST, errno.ENOENT, errno.ENOMEM}
        if bad:
            number = bad.pop()
            raise OSError(number, f"the connection table takes no entry: {os.strerror(number)}")
        good = [n for n, answer in zip(numbers, answers, strict=True) if answer == 0]
        if good:
            self._bundles.append((self._clock() + LIFETIME_S / 2, good))
        return len(good)


def run(settings: dict[str, Any]) -> int:
    """Fill until standard input ends."""
    table = Table()
    filler = Filler(table, settings["leave"])
    try:
        filler.fill()
    except OSError as error:
        table.clear()
        raise RefusedError(f"after {filler.held} entries: {error.strerror or error}") from error
    return serve(
        lambda: {"counters": {"held": filler.held, "entries": count()}}, every_s=_EVERY_S, tick=filler.fill
    )


if __name__ == "__main__":
    sys.exit(main_of(run))
