"""What was asked of a service, what it answered, and so what its database may contain. Pure but for the file.

Every request is a line: what was meant, what came back, how long it took. A write that was answered has happened;
one that was refused has not; one without an answer *may* have happened: its value stays possible until a later
write of the same key is answered. A read that does not see it says nothing: it may wait for its commit, or in a
queue. That holds where each write names the version it builds on and a late one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Answer = Literal["ok", "refused", "error", "timeout", "unreachable", "dropped"]
"""`refused`: the service said no and meant it (sold out). `error`: it said that it could not. `dropped`: the load
generator was too busy to send it; such a line says nothing of the service."""

KNOWN_NOT_DONE: frozenset[Answer] = frozenset({"refused", "dropped"})


class Line(BaseModel):
    """One request. Times in seconds since the start of the load: when it was due, and when it was sent.

    A write has the `key` it writes and the `value` it means, "" for taking it away; a read has the value it `saw`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    due_s: float
    sent_s: float
    latency_s: float = Field(ge=0)
    operation: str
    answer: Answer
    status: int = 0
    key: str = ""
    value: str | None = None
    saw: str | None = None

    @property
    def is_write(self) -> bool:
        return self.value is not None

    @property
    def ended_s(self) -> float:
        """When the answer came, or the wait for it was over."""
        return self.sent_s + self.latency_s


class Unexplained(BaseModel):
    """A key whose content cannot be explained by what was asked and answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["lost", "stale", "phantom", "wrong_read"]
    key: str
    found: str
    possible: tuple[str, ...]

    def __str__(self) -> str:
        expected = " or ".join(value or "nothing" for value in self.possible)
        return f"{self.kind}: {self.key} has {self.found or 'nothing'}, it was answered {expected}"


def replay(lines: Iterable[Line]) -> tuple[Mapping[str, frozenset[str]], tuple[Unexplained, ...]]:
    """Which values each key may have after all that, and reads that saw something else.

    Lines come in the order in which their requests ended; those of one key never overlap.
    """
    possible: dict[str, frozenset[str]] = {}
    pending: dict[str, tuple[str, ...]] = {}
    wrong = []
    for line in lines:
        before, late = possible.get(line.key, frozenset({""})), pending.get(line.key, ())
        if line.is_write and line.value is not None:
            if line.answer == "ok":
                possible[line.key] = frozenset({line.value})
                pending[line.key] = ()
            elif line.answer not in KNOWN_NOT_DONE:
                possible[line.key] = before | {line.value}
                pending[line.key] = (*late, line.value)
        elif line.answer == "ok" and line.saw is not None:
            if line.saw not in before:
                wrong.append(
                    Unexplained(kind="wrong_read", key=line.key, found=line.saw, possible=_sorted(before))
                )
            else:
                late = late[late.index(line.saw) + 1 :] if line.saw in late else late
                pending[line.key] = late
                possible[line.key] = frozenset({line.saw, *late})
    return possible, tuple(wrong)


def against(possible: Mapping[str, frozenset[str]], found: Mapping[str, str]) -> tuple[Unexplained, ...]:
    """What in a database cannot be explained: `found` has the value of each key that is there.

    Lost: it must be there and is not. Phantom: it must not be there and is. Stale: it is another value.
    """
    problems = []
    for key in sorted({*possible, *found}):
        here, allowed = found.get(key, ""), possible.get(key, frozenset({""}))
        if here in allowed:
            continue
        kind: Literal["lost", "stale", "phantom"] = "stale"
        if not here:
            kind = "lost"
        elif allowed == {""}:
            kind = "phantom"
        problems.append(Unexplained(kind=kind, key=key, found=here, possible=_sorted(allowed)))
    return tuple(problems)


def read_ledger(path: Path) -> Iterator[Line]:
    """The lines of a ledger file; one that was cut short at the end is left out."""
    *whole, _ = path.read_text().split("\n")
    for text in whole:
        yield Line.model_validate_json(text)


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(values))
