"""The record of one episode: a directory, written in stages, that can be read at any moment and judged again.

```
run.json       what was run and how, and the stage it has reached
events.jsonl   what happened, a line each, in order
verdict.json   what was said of it
artifacts/     what oracles looked at
```

Room for the verdict is set aside at the start, so that a disk which fills up later costs events and not the end.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import LabError
from labctl.lab.files import write_atomic
from labctl.run.verdict import Verdict

FORMAT = 1
Stage = Literal["prepare", "gate", "plant", "solve", "freeze", "soak", "challenge", "judge", "recover", "done"]
RESERVE_BYTES = 1 << 20

_RESERVE = ".reserve"


class Run(BaseModel):
    """What was run. `seed` decides every random choice of it; `aborted` says why it ended before its end.

    `limit_s` is the solver's time in seconds; None in records that do not tell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    id: str
    problem: str
    catalogue: str
    solver: str
    noise: str = "calm"
    surface: str = "shell"
    limit_s: float | None = Field(default=None, gt=0)
    seed: int = Field(ge=0, lt=2**63)
    lab: str
    started: dt.datetime
    stage: Stage = "prepare"
    aborted: str = ""
    ended: dt.datetime | None = None


class Event(BaseModel):
    """One thing that happened, `at_s` seconds after the start by a clock that nobody steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: float
    kind: str
    data: Mapping[str, Any] = Field(default_factory=dict)


class RecordWriter:
    """Writes the record of a run as it goes. `clock` is monotonic, in seconds.

    Raises :class:`LabError` where the disk takes no more; the verdict can still be written then.
    """

    def __init__(self, path: Path, run: Run, clock: Callable[[], float]) -> None:
        self.path, self.run, self._clock, self._began = path, run, clock, clock()
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise LabError(f"there is a record at {path} already", "name another directory") from None
        (path / "artifacts").mkdir()
        with self._room():
            with (path / _RESERVE).open("wb") as reserve:
                os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
            self._save()
        self._events = os.open(path / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def event(self, kind: str, **data: Any) -> None:
        """One line, whole or not at all as far as a reader can tell."""
        line = Event(at_s=round(self._clock() - self._began, 6), kind=kind, data=data).model_dump_json() + "\n"
        with self._room():
            _write_all(self._events, line.encode())

    def stage(self, stage: Stage) -> None:
        """The episode has got so far."""
        self.run = self.run.model_copy(update={"stage": stage})
        with self._room():
            self._save()
        self.event("stage", stage=stage)

    def artifact(self, name: str, content: bytes) -> Path:
        """Keep what an oracle looked at. `name` is a plain file name."""
        target = self.path / "artifacts" / name
        if target.parent != self.path / "artifacts":
            raise ValueError(f"{name} is no plain file name")
        with self._room():
            write_atomic(target, content)
        return target

    def finish(self, verdict: Verdict, ended: dt.datetime, aborted: str = "") -> None:
        """Write the verdict and close the record, also on a disk that is full."""
        (self.path / _RESERVE).unlink(missing_ok=True)
        self.run = self.run.model_copy(update={"stage": "done", "ended": ended, "aborted": aborted})
        with self._room():
            write_atomic(self.path / "verdict.json", verdict.model_dump_json(indent=2).encode() + b"\n")
            self._save()

    def close(self) -> None:
        """Let go of the files. Twice is fine."""
        if self._events >= 0:
            os.close(self._events)
            self._events = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _save(self) -> None:
        write_atomic(self.path / "run.json", self.run.model_dump_json(indent=2).encode() + b"\n")

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Says of a full disk what it is."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise LabError(f"there is no room for the record at {self.path}", "free some, and run again") from None


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Record(BaseModel):
    """A record as it was found. `verdict` is None where the episode did not get there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    run: Run
    events: tuple[Event, ...]
    verdict: Verdict | None


def read_record(path: Path) -> Record:
    """What is in a record, whole or cut short. Raises :class:`LabError` for what is none, or of another format."""
    try:
        text = (path / "run.json").read_text()
    except OSError as error:
        raise LabError(f"{path} is no record: {error.strerror}", "give the directory of a run") from None
    try:
        found = json.loads(text).get("format")
        if found != FORMAT:
            raise LabError(
                f"{path} has format {found}, this labctl reads {FORMAT}", "use the labctl that wrote it"
            )
        run = Run.model_validate_json(text)
        verdict_file = path / "verdict.json"
        verdict = Verdict.model_validate_json(verdict_file.read_text()) if verdict_file.exists() else None
        return Record(path=path, run=run, events=tuple(_events(path / "events.jsonl")), verdict=verdict)
    except (ValidationError, ValueError, AttributeError) as error:
        first = str(error).splitlines()[0]
        raise LabError(f"the record at {path} is damaged: {first}", "judge another one") from None


def _events(path: Path) -> Iterator[Event]:
    """Its lines. The last one may be cut short where the run was killed; it then never happened."""
    if not path.exists():
        return
    *whole, _ = path.read_text().split("\n")
    for line in whole:
        yield Event.model_validate_json(line)
