"""The clock as a part of the host's state: what it should be nobody knows, so small differences are none."""

from __future__ import annotations

from node_agent.fault import TAG_PREFIX
from node_agent.host import Reader
from node_agent.steps.clock_record import read_record
from node_agent.steps.mark_file import DIRECTORY

_TOLERANCE = {"s": 2.0, "ppm": 500.0}
"""What a service that keeps the time may do on its own: a step when it starts, a correction of the rate."""


def clock_state(reader: Reader) -> dict[str, str]:
    """How far the wall clock is ahead of the boot clock, and its rate; with the mark of who changed them."""
    names = (path.rpartition("/")[2] for path in reader.glob(f"{DIRECTORY}/{TAG_PREFIX}*"))
    marks = "".join(f" {name}" for name in names if read_record(reader, name) is not None)
    offset, ppm = reader.clock.now().offset / 1e9, reader.clock.rate().ppm
    return {"offset": f"{offset:.3f} s{marks}", "rate": f"{ppm:.3f} ppm{marks}"}


def same_clock(was: str, now: str) -> bool:
    """Whether two texts of :func:`clock_state` differ by no more than somebody's keeping of the time."""
    one, other = was.split(), now.split()
    if len(one) != 2 or len(other) != 2 or one[1] != other[1]:
        return False
    return abs(float(one[0]) - float(other[0])) <= _TOLERANCE[one[1]]
