"""What a solver says is wrong, in words of a closed vocabulary, and how near it came. Pure.

A diagnosis is a set of triples: which component, what is wrong with it, and how far it reaches. The vocabulary of
a problem is given to the solver and has decoys: words that would be right for another cause of the same symptoms.
Graded by code: *exact* when the triples are those of the cause, *partial* when something of it is right and
nothing is made up, *wrong* otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labctl.run.verdict import DiagnosisGrade

Words = tuple[str, ...]


class DiagnosisError(ValueError):
    """A diagnosis that says nothing: what was wrong with it, and what is allowed."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Triple(_Value):
    """One thing that is wrong: `w2 data disk`, `unreadable sectors`, `one table of the database`."""

    component: str
    mechanism: str
    scope: str

    def __str__(self) -> str:
        return f"{self.component}: {self.mechanism} ({self.scope})"


class Vocabulary(_Value):
    """The words a solver may use, decoys among them. Each is in the dimension it belongs to."""

    component: Words = Field(min_length=2)
    mechanism: Words = Field(min_length=2)
    scope: Words = Field(min_length=2)

    @model_validator(mode="after")
    def _each_once(self) -> Vocabulary:
        for dimension in Triple.model_fields:
            words = getattr(self, dimension)
            if len({*words}) != len(words):
                raise ValueError(f"{dimension}: a word is there twice")
        return self

    def check(self, triples: Iterable[Triple]) -> None:
        """Raises :class:`DiagnosisError` for a word that is not in it."""
        for triple in triples:
            for dimension in Triple.model_fields:
                word, allowed = getattr(triple, dimension), getattr(self, dimension)
                if word not in allowed:
                    raise DiagnosisError(f"{dimension}: {word!r} is no word of this problem; allowed: "
                                         f"{', '.join(allowed)}")  # fmt: skip


class Diagnosis(_Value):
    """What a solver submitted. `healthy`: nothing is wrong, and nothing is to be repaired. `text`: its words."""

    triples: tuple[Triple, ...] = Field(default=(), max_length=16)
    healthy: bool = False
    text: str = Field(default="", max_length=20_000)

    @model_validator(mode="after")
    def _says_something(self) -> Diagnosis:
        if self.healthy == bool(self.triples):
            raise ValueError("give triples, or healthy: true")
        return self


def parse_diagnosis(text: str, vocabulary: Vocabulary) -> Diagnosis:
    """A diagnosis from JSON. Raises :class:`DiagnosisError` in one line, with what is allowed."""
    try:
        found = Diagnosis.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise DiagnosisError(f"not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "diagnosis"
        raise DiagnosisError(f"{field}: {first['msg'].removeprefix('Value error, ')}") from None
    vocabulary.check(found.triples)
    return found


def grade(found: Diagnosis | None, cause: frozenset[Triple]) -> DiagnosisGrade:
    """How near a diagnosis is to the cause; an empty cause is a problem where nothing is wrong.

    With several causes, finding some of them and nothing else is partial. Of one cause, component and mechanism
    with another scope are partial; a component alone is not, since guessing finds it.
    """
    if found is None:
        return "none"
    said = frozenset(found.triples)
    if said == cause:
        return "exact"
    if not said or not cause:
        return "wrong"
    near = {(t.component, t.mechanism) for t in cause}
    return "partial" if all((t.component, t.mechanism) in near for t in said) else "wrong"
