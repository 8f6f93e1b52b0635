"""Records of runs that never were, written as real ones are: through the writer, with ledgers of thousands."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.run.arrivals import Tide, arrivals
from labctl.run.diagnosis import Diagnosis
from labctl.run.diary import RecordDiary
from labctl.run.ledger import Line
from labctl.run.oracle import Sight
from labctl.run.record import RecordWriter, Run
from labctl.run.verdict import Aspect, Finding, Outcome, Verdict

from .run_world import BAD

BEGAN = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
LOAD_BEGINS, PLANTED, SOLVING = 4.0, 40.0, 45.0
GOOD, WRONG = Outcome.PASS, Outcome.FAIL


@dataclass
class Made:
    """What a record tells. Times in seconds since its start; `declared` None: never. `fixed`: users are served."""

    problem: str = "reads_fail"
    solver: str = "reference"
    catalogue: str = "abc123 (24 problems)"
    noise: str = "calm"
    seed: int = 1
    fault: str = "latent_sector_error"
    submitted: tuple[float, ...] = (80.0,)
    fixed: float | None = 120.0
    declared: float | None = 150.0
    served: Outcome = GOOD
    safe: Outcome = GOOD
    lasting: Outcome = GOOD
    diagnosis: Any = "exact"
    void: str = ""
    usage: dict[str, Any] | None = None
    limit_s: float | None = None
    more: tuple[tuple[float, str, dict[str, Any]], ...] = ()
    rate_per_s: float = 8.0
    length: float = 300.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, made: Made, number: int = 0) -> Path:
    """A whole record."""
    run = Run(
        id=f"r{number}", problem=made.problem, catalogue=made.catalogue, solver=made.solver, noise=made.noise,
        seed=made.seed, lab="default", limit_s=made.limit_s, started=BEGAN + dt.timedelta(minutes=number),
    )  # fmt: skip
    clock = Clock()
    with RecordWriter(path, run, clock) as record:
        diary = RecordDiary(record, lambda kind, data: None)
        for at, kind, data in sorted(happened(made), key=lambda e: e[0]):
            clock.now = at
            if kind == "stage":
                diary.stage(data["stage"])
            elif kind == "sight":
                diary.sight(data["when"], Sight(seen={}, blind={}))
            else:
                diary.event(kind, **data)
        diary.ledger(tuple(lines(made)))
        if made.usage is not None:
            record.artifact("usage.json", json.dumps(made.usage).encode())
        record.finish(verdict(made), BEGAN + dt.timedelta(minutes=number, seconds=made.length))
    return path


def happened(made: Made) -> Iterator[tuple[float, str, dict[str, Any]]]:
    said = Diagnosis(triples=(BAD,), text="sectors").model_dump(mode="json") if made.submitted else None
    over = made.declared or made.length - 100
    span = {"when": "before", "begin_s": 2.0, "first_s": 32.0, "looked_s": 32.0, "end_s": 33.0}
    yield 0.0, "stage", {"stage": "prepare"}
    yield 1.0, "stage", {"stage": "gate"}
    yield LOAD_BEGINS + 33.0, "sight", {"when": "before"}
    yield LOAD_BEGINS + 35.0, "window", span
    yield PLANTED, "planted", {"fault": made.fault, "node": "w2", "injection": "i-1", "parameters": {}}
    if made.void:
        yield over, "void", {"reason": made.void}
    else:
        yield SOLVING, "stage", {"stage": "solve"}
        if made.noise != "calm":
            told = {"at_s": 20.0, "lasts_s": 9.0, "node": "w1", "detail": ""}
            yield 65.0, "noise", {**told, "what": "cron", "problem": ""}
            yield 70.0, "noise", {**told, "what": "loss", "problem": "w1 does not answer"}
        for number, at in enumerate(made.submitted, 1):
            yield at, "submitted", {"number": number, "diagnosis": said}
        if made.declared is not None:
            yield made.declared, "declared", {}
        how = "ended" if made.declared is None else "declared"
        yield over + 0.2, "solved", {"how": how, "diagnosis": said}
    yield from made.more
    yield made.length - 10, "stage", {"stage": "recover"}


def lines(made: Made) -> Iterator[Line]:
    rng = random.Random(made.seed)
    fixed = made.fixed if made.fixed is not None else made.length
    for due in arrivals(Tide(rate_per_s=made.rate_per_s, cycle_s=60), made.seed):
        at = due + LOAD_BEGINS
        if at > made.length:
            return
        broken = PLANTED < at < fixed and rng.random() < 0.4
        latency = rng.lognormvariate(-3, 0.5) * (6 if PLANTED < at < fixed else 1)
        yield Line(
            due_s=due, sent_s=due, latency_s=latency, operation="book", answer="error" if broken else "ok",
            status=503 if broken else 200, key=f"booking/{rng.getrandbits(32):08x}", value="seat 12A",
        )  # fmt: skip


def verdict(made: Made) -> Verdict:
    if made.void:
        return Verdict(declared=False, void=made.void)
    found: tuple[tuple[str, Aspect, Outcome], ...] = (
        ("clients", "objective", made.served), ("scope", "scope", made.safe),
        ("clients after the challenge", "durability", made.lasting),
    )  # fmt: skip
    findings = tuple(
        Finding(
            oracle=name, aspect=aspect, outcome=outcome, reasons=() if outcome is GOOD else (f"{name} says no",)
        )
        for name, aspect, outcome in found
    )
    return Verdict(findings=findings, declared=made.declared is not None, diagnosis=made.diagnosis)


def hundred(where: Path, rate_per_s: float = 15.0) -> list[Path]:
    """A hundred runs: ten problems, two solvers, all kinds of ends; ledgers of 4,500 lines.

    Twenty-five are written and the others are copies under other names: writing waits for the disk each time.
    """
    rng = random.Random(7)
    faults = ("latent_sector_error", "packet_loss", "clock_drift", "oom_kill", "syscall_error")
    paths = []
    for number in range(25):
        problem, good = number % 10, rng.random() < 0.6
        made = Made(
            problem=f"problem_{problem}", solver="agent" if number % 4 else "reference", seed=number,
            noise="usual" if number % 3 == 0 else "calm", fault=faults[problem % 5],
            fixed=100.0 + 40 * rng.random() if good else None, served=GOOD if good else WRONG,
            safe=WRONG if rng.random() < 0.1 else GOOD, diagnosis=rng.choice(("exact", "partial", "wrong")),
            void="it did not bite" if number == 24 else "", rate_per_s=rate_per_s,
            usage={"tokens_in": 1000 + number, "tokens_out": 100, "cost_usd": 0.05} if number % 4 else None,
        )  # fmt: skip
        paths.append(write(where / f"r{number:03}", made, number))
    for number in range(25, 100):
        copy = Path(shutil.copytree(paths[number % 25], where / f"r{number:03}"))
        run = json.loads((copy / "run.json").read_text()) | {"id": f"r{number}", "seed": number}
        (copy / "run.json").write_text(json.dumps(run))
        paths.append(copy)
    return paths
