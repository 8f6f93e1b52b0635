"""Whether clients are served: success, goodput and latency of each operation, and reads that see the truth.

Judged from the ledger of the load, over a window that has to hold throughout: a mean over minutes would let a
service be away for seconds. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from labctl.run.ledger import Line, replay
from labctl.run.oracle import Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome, worst

ANSWERED = frozenset({"ok", "refused"})
"""Answers of a service that does its work: a flight that is sold out is no outage."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Objective(_Value):
    """What clients of one operation are promised, in each slice of the window.

    `success` is a share of requests, `p95_s` the latency that 95 of 100 answers keep, counted from the moment a
    request was *due*; one that is not answered is as late as can be.
    """

    success: float = Field(ge=0, le=1)
    p95_s: float = Field(gt=0)


class Objectives(_Value):
    """Objectives by operation. The window is cut into slices of `slice_s` seconds, and each has to hold.

    `goodput_per_s`: so many answered requests a second at least, of all operations, over the whole window; nothing
    is known of it where fewer were asked. `enough` requests of an operation in a slice, or nothing is known of it;
    more than `dropped` of the requests not sent at all (the load generator was too slow), and nothing is either.
    """

    operations: Mapping[str, Objective]
    slice_s: float = Field(default=15.0, gt=0)
    goodput_per_s: float = Field(default=0.0, ge=0)
    enough: int = Field(default=10, ge=1)
    dropped: float = Field(default=0.02, ge=0, le=1)


def clients(lines: Sequence[Line], objectives: Objectives, begin_s: float, end_s: float) -> Finding:
    """The finding for requests that were due in [begin_s, end_s), seconds since the start of the load."""
    due = [line for line in lines if begin_s <= line.due_s < end_s]
    outcomes, reasons = [], []
    measures: dict[str, float | int | str] = {"requests": len(due)}
    dropped = sum(line.answer == "dropped" for line in due)
    if not due or dropped > objectives.dropped * len(due):
        outcomes.append(Outcome.UNKNOWN)
        reasons.append(f"the load generator did not send {dropped} of {len(due)} requests")
    for name, objective in sorted(objectives.operations.items()):
        mine = [line for line in due if line.operation == name and line.answer != "dropped"]
        measures[f"{name}_success"] = round(_success(mine), 4)
        measures[f"{name}_p95_s"] = round(_late(mine, 0.95), 4)
        for start, stop in _slices(objectives.slice_s, begin_s, end_s):
            here = [line for line in mine if start <= line.due_s < stop]
            outcome, reason = _kept(here, objective, objectives.enough)
            outcomes.append(outcome)
            reasons += [f"{name} at {start:.0f}-{stop:.0f} s: {reason}"] if reason else []
    goodput = sum(line.answer in ANSWERED for line in due) / (end_s - begin_s)
    measures["goodput_per_s"] = round(goodput, 3)
    if goodput < objectives.goodput_per_s:
        asked = len(due) / (end_s - begin_s)
        outcomes.append(Outcome.FAIL if asked >= objectives.goodput_per_s else Outcome.UNKNOWN)
        reasons.append(f"goodput {goodput:.2f}/s of {asked:.2f}/s, promised {objectives.goodput_per_s:g}/s")
    wrong = [p for p in replay(lines)[1] if p.key in {line.key for line in due}]
    measures["wrong_reads"] = len(wrong)
    if wrong:
        outcomes.append(Outcome.FAIL)
        reasons.append(f"{len(wrong)} reads saw what cannot be, such as {wrong[0]}")
    return Finding(oracle="clients", aspect="objective", outcome=worst(outcomes), reasons=tuple(reasons),
                   measures=measures)  # fmt: skip


def _slices(slice_s: float, begin_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """The slices of a window; the last one is as long as the others or longer."""
    count = max(1, int((end_s - begin_s) / slice_s))
    for number in range(count):
        yield begin_s + number * slice_s, end_s if number == count - 1 else begin_s + (number + 1) * slice_s


def _kept(lines: Sequence[Line], promised: Objective, enough: int) -> tuple[Outcome, str]:
    """Whether these requests were served as promised, and if not, why."""
    if len(lines) < enough:
        return Outcome.UNKNOWN, f"only {len(lines)} requests"
    success, late = _success(lines), _late(lines, 0.95)
    if success < promised.success:
        return Outcome.FAIL, f"success {success:.1%}, promised {promised.success:.1%}"
    if late > promised.p95_s:
        return Outcome.FAIL, f"95 of 100 within {late:.2f} s, promised {promised.p95_s:g} s"
    return Outcome.PASS, ""


def _success(lines: Sequence[Line]) -> float:
    return sum(line.answer in ANSWERED for line in lines) / len(lines) if lines else math.nan


def _late(lines: Sequence[Line], share: float) -> float:
    """The latency that `share` of the requests keep (nearest rank), from when they were due."""
    if not lines:
        return math.nan
    times = sorted(line.ended_s - line.due_s if line.answer in ANSWERED else math.inf for line in lines)
    return times[max(0, math.ceil(share * len(times)) - 1)]


class Clients(Oracle):
    """Clients are served as `objectives` promise, over the window and until oracles begin to look: what these cost
    is the lab's, not the service's.
    """

    objectives: Objectives

    @property
    def name(self) -> str:
        return "clients"

    @property
    def aspect(self) -> Aspect:
        return "objective"

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        return clients(window.lines, self.objectives, window.begin_s, window.looked)
