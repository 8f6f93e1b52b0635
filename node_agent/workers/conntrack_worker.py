"""Keeps the connection tracking table full. Run as a script by an injection.

Settings: `leave`, how many entries others can still have. The kernel ends what this has made by itself: each entry
has a timeout, which is renewed as long as this runs.
"""

from __future__ import annotations

import errno
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from node_agent.workers.conntrack import Table, count, most
from node_agent.workers.serving import RefusedError, main_of, serve

_EVERY_S = 0.05
_SHORTEST_S, _A_SECOND = 60, 500
"""An entry lives so long, and a second more for each so many: renewing them all then costs little."""


class Filler:
    """The entries that are there, the next to be renewed first."""

    def __init__(self, table: Table, leave: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._leave, self._clock = table, leave, clock
        self._entries: deque[tuple[float, int]] = deque()
        self._next = 0
        self.failed = 0

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._entries)

    def fill(self) -> None:
        """Make as many entries as are missing, and renew those whose time comes. Raises OSError."""
        missing = most() - self._leave - count()
        while missing > 0:
            numbers = range(self._next, self._next + missing)
            self._next += missing
            made = self._made(list(numbers), new=True)
            if not made:
                return
            missing -= made
        self._renew()

    def _lifetime_s(self) -> int:
        return _SHORTEST_S + len(self._entries) // _A_SECOND

    def _made(self, numbers: list[int], *, new: bool) -> int:
        lifetime = self._lifetime_s() + len(numbers) // _A_SECOND
        answers = self._table.put(numbers, lifetime, new=new)
        due = self._clock() + lifetime / 2
        good = [n for n, answer in zip(numbers, answers, strict=True) if answer == 0]
        self._entries.extend((due, n) for n in good)
        bad = {a for a in answers if a} - {errno.EEXIST, errno.ENOENT, errno.ENOMEM}
        self.failed += len(answers) - len(good)
        if bad:
            raise OSError(bad.pop(), "the connection table takes no entry")
        return len(good)

    def _renew(self) -> None:
        now, numbers = self._clock(), []
        while self._entries and self._entries[0][0] <= now:
            numbers.append(self._entries.popleft()[1])
        if numbers:
            self._made(numbers, new=False)


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
