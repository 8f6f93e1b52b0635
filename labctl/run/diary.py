"""The diary of an episode: a record, told to people as it grows; and what a record says of its episode.

Artifacts: `sight-WHEN.json`, what all oracles saw; `ledger.jsonl`, every request; what else solvers leave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from labctl.errors import LabError
from labctl.run.diagnosis import Diagnosis
from labctl.run.judging import Biting, Gathered, Span, Tampering
from labctl.run.ledger import Line, read_ledger
from labctl.run.oracle import Sight
from labctl.run.record import Record, RecordWriter, Stage

LEDGER = "ledger.jsonl"
EDITED = Tampering(aspect="integrity", reason="the ledger was edited after it was written")


class RecordDiary:
    """See :class:`labctl.run.episode.Diary`. `tell` gets each stage and event as it comes."""

    def __init__(self, record: RecordWriter, tell: Callable[[str, dict[str, object]], None]) -> None:
        self.record, self._tell = record, tell

    def stage(self, stage: Stage) -> None:
        self._tell("stage", {"stage": stage})
        self.record.stage(stage)

    def event(self, kind: str, **data: object) -> None:
        self._tell(kind, data)
        self.record.event(kind, **data)

    def sight(self, when: str, sight: Sight) -> None:
        self.record.artifact(f"sight-{when}.json", sight.model_dump_json().encode())
        self.event("sight", when=when, blind=dict(sight.blind))

    def ledger(self, lines: Sequence[Line]) -> None:
        content = "".join(f"{line.model_dump_json()}\n" for line in lines).encode()
        self.record.artifact(LEDGER, content)
        self.event("ledger", lines=len(lines), sha256=hashlib.sha256(content).hexdigest())


def gathered_of(record: Record) -> tuple[Gathered, tuple[Line, ...]]:
    """What an episode gathered, and its ledger, from its record.

    Raises :class:`LabError` where the episode did not come to its end, or the record is damaged.
    """
    said: dict[str, Any] = {event.kind: event.data for event in record.events if event.kind != "window"}
    spans = {str(e.data["when"]): e.data for e in record.events if e.kind == "window"}
    if "ledger" not in said and "void" not in said:
        raise LabError(f"the run at {record.path} did not come to its end: {record.run.stage}", "run it again")
    try:
        return _gathered(record, said, spans), _lines(record.path)
    except (ValidationError, OSError, KeyError, ValueError) as error:
        raise LabError(f"the record at {record.path} is damaged: {str(error).splitlines()[0]}") from None


def _gathered(record: Record, said: dict[str, Any], spans: dict[str, Any]) -> Gathered:
    solved = said.get("solved", {})
    tampering = [Tampering.model_validate(one) for one in said.get("tampering", {}).get("found", ())]
    if "ledger" in said and _sum(record.path) != said["ledger"]["sha256"]:
        tampering.append(EDITED)
    return Gathered(
        sights={when: _sight(record.path, when) for when in spans},
        spans={when: Span.model_validate(_span(data)) for when, data in spans.items()},
        biting=tuple(Biting.model_validate(one) for one in said.get("biting", {}).get("found", ())),
        tampering=tuple(tampering),
        declared=solved.get("how") == "declared",
        diagnosis=Diagnosis.model_validate(solved["diagnosis"]) if solved.get("diagnosis") else None,
        void=said.get("void", {}).get("reason", ""),
    )


def _span(data: Any) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "when"}


def _sight(path: Path, when: str) -> Sight:
    return Sight.model_validate_json((path / "artifacts" / f"sight-{when}.json").read_text())


def _sum(path: Path) -> str:
    return hashlib.sha256((path / "artifacts" / LEDGER).read_bytes()).hexdigest()


def _lines(path: Path) -> tuple[Line, ...]:
    ledger = path / "artifacts" / LEDGER
    return tuple(read_ledger(ledger)) if ledger.exists() else ()
