"""Whether the clocks of nodes agree with each other and with the control side, and run at one rate.

A node's wall clock is compared with its own raw hardware clock, which nobody steers, over some seconds: the rate
shows there to some parts in ten thousand, and so does a clock that is set again and again. How far off it is
cannot be known better than the time that the quickest of three answers takes.
"""

from __future__ import annotations

import math
import time

from labctl.oracles.nodes import on_each, python, run, watched
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_TRIES = 3


class Clocks(Oracle):
    """All nodes are within `within_s` seconds of the control side, and of each other, and no clock gains or loses
    more than `rate` of the time (0.002 is 2 milliseconds a second). Nodes of `without` are left out.
    """

    within_s: float = 1.0
    rate: float = 0.002
    apart_s: float = 4.0
    without: tuple[str, ...] = ()
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "clocks"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    @property
    def turn(self) -> int:
        return 1

    def look(self, lab: Lookout) -> Seen:
        return on_each(watched(lab, self.without), lambda node: self._look(lab, node))

    def _look(self, lab: Lookout, node: str) -> Seen:
        (wall, raw), (later_wall, later_raw) = python(
            lab, node, "clocks", {"apart_s": self.apart_s}, timeout_s=self.apart_s + 60.0
        )
        low, high = -math.inf, math.inf
        for _ in range(_TRIES):
            asked = time.time()
            said = float(run(lab, node, "date +%s.%N"))
            # It was read after the question and before the answer.
            low, high = max(low, said - time.time()), min(high, said - asked)
        gains = round((later_wall - wall) / (later_raw - raw) - 1, 7)
        return {"ahead_at_least_s": round(low, 4), "ahead_at_most_s": round(high, 4), "gains": gains}

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        """Off where even the kindest reading is: `ahead_at_least_s` and `ahead_at_most_s` enclose the truth."""
        bad: list[str] = []
        unsure: list[str] = []
        for node, seen in sorted(after.items()):
            low, high = seen["ahead_at_least_s"], seen["ahead_at_most_s"]
            if low > self.within_s or high < -self.within_s:
                bad.append(
                    f"{node}: its clock is {max(low, -high):.2f} s {'ahead' if low > 0 else 'behind'} or more"
                )
            elif high - low > 2 * self.within_s:
                unsure.append(f"{node}: its clock could only be read to {high - low:.1f} s")
            if abs(seen["gains"]) > self.rate:
                bad.append(f"{node}: its clock runs {seen['gains']:+.2%} off")
        for node, seen in sorted(after.items() if not bad else ()):
            for other, theirs in sorted(after.items()):
                apart = seen["ahead_at_least_s"] - theirs["ahead_at_most_s"]
                if apart > self.within_s:
                    bad.append(f"{node}: its clock is {apart:.2f} s ahead of {other}")
        outcome = Outcome.FAIL if bad else Outcome.UNKNOWN if unsure else Outcome.PASS
        fastest = max((abs(seen["gains"]) for seen in after.values()), default=0.0)
        return self.found(outcome, *bad, *unsure, fastest=fastest)
