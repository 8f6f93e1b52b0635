"""Time that nobody can change: what leases are counted in."""

from __future__ import annotations

import time


def steady_s() -> float:
    """Seconds since boot, suspended time included, as the hardware counts them.

    CLOCK_BOOTTIME cannot be stepped, but goes at the rate that adjtimex(2) sets; CLOCK_MONOTONIC_RAW does not, and
    stands still while the machine sleeps: clock_gettime(2).
    """
    asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return (time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) + asleep) / 1e9
