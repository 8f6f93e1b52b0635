"""From a ledger to what is plotted and measured: success and latency over time. Pure.

Works on lines as the parser gives them, not on :class:`labctl.run.ledger.Line`: a report of a hundred records has
half a million of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

ANSWERED = frozenset({"ok", "refused"})
MOST_POINTS = 240
SLICE_S, SERVED = 5.0, 0.95
"""Clients count as served in a slice of so many seconds with so much success."""

_NEEDED = frozenset({"due_s", "sent_s", "latency_s", "answer"})

Lines = Sequence[Mapping[str, Any]]


class Series(BaseModel):
    """Points `step_s` seconds apart, since the start of the record. None where nothing was asked, or answered.

    `success` is the share of requests that were answered, of those that were sent; `median_s` and `p95_s` the
    latencies of those, from when each was due.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_s: float
    at_s: tuple[float, ...] = ()
    success: tuple[float | None, ...] = ()
    median_s: tuple[float | None, ...] = ()
    p95_s: tuple[float | None, ...] = ()


def parse(content: bytes) -> Lines:
    """The lines of a ledger; one cut short at the end is left out. Raises ValueError for one that is damaged."""
    whole = content[: content.rfind(b"\n") + 1].rstrip(b"\n")
    found = from_json(b"[" + whole.replace(b"\n", b",") + b"]")
    if not all(isinstance(line, dict) and line.keys() >= _NEEDED for line in found):
        raise ValueError("a line is no request")
    return found  # type: ignore[no-any-return]


def series(lines: Lines, offset_s: float) -> Series:
    """`offset_s`: when in the record the load began."""
    if not lines:
        return Series(step_s=1.0)
    last = max(line["due_s"] for line in lines)
    step = float(max(1, math.ceil(last / MOST_POINTS)))
    asked: dict[int, int] = {}
    times: dict[int, list[float]] = {}
    for line in lines:
        if line["answer"] == "dropped":
            continue
        slot = int(line["due_s"] // step)
        asked[slot] = asked.get(slot, 0) + 1
        if line["answer"] in ANSWERED:
            times.setdefault(slot, []).append(line["sent_s"] + line["latency_s"] - line["due_s"])
    slots = range(int(last // step) + 1)
    ordered = {slot: sorted(found) for slot, found in times.items()}
    return Series(
        step_s=step,
        at_s=tuple(round(offset_s + (slot + 0.5) * step, 3) for slot in slots),
        success=tuple(len(times.get(s, ())) / asked[s] if s in asked else None for s in slots),
        median_s=tuple(_quantile(ordered.get(s), 0.5) for s in slots),
        p95_s=tuple(_quantile(ordered.get(s), 0.95) for s in slots),
    )


def healthy_from(lines: Lines, begin_s: float, end_s: float) -> float | None:
    """From when on clients were served until `end_s`, in seconds since the start of the load.

    None where they were served throughout from `begin_s`, or not at the end.
    """
    sent: dict[int, int] = {}
    good: dict[int, int] = {}
    for line in lines:
        if begin_s <= line["due_s"] < end_s and line["answer"] != "dropped":
            slot = int((line["due_s"] - begin_s) // SLICE_S)
            sent[slot] = sent.get(slot, 0) + 1
            good[slot] = good.get(slot, 0) + (line["answer"] in ANSWERED)
    bad = [slot for slot, count in sent.items() if good[slot] < SERVED * count]
    if not bad or max(bad) == max(sent):
        return None
    return begin_s + (max(bad) + 1) * SLICE_S


def _quantile(times: Sequence[float] | None, share: float) -> float | None:
    """Nearest rank, of sorted times."""
    return times[max(0, math.ceil(share * len(times)) - 1)] if times else None
