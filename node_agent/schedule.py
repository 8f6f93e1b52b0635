"""When a fault bites, as a value: parsed from the word a user types, printed back the same.

Every fault says which of these its mechanism can do; the others are refused with the reason.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

Kind = Literal["always", "probability", "every", "after", "first", "burst", "ratio"]

FORMS: dict[Kind, str] = {
    "always": "always",
    "probability": "probability:P with 0 < P <= 1",
    "every": "every:K, each K-th",
    "after": "after:N, all but the first N",
    "first": "first:N, only the first N",
    "burst": "burst:ON/OFF in whole seconds",
    "ratio": "ratio:A/B, exactly A of every B",
}


class ScheduleValue(BaseModel):
    """A schedule. `a` and `b` are the numbers of its form; what they count is the fault's to say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "always"
    a: float = 0
    b: float = 0

    def __str__(self) -> str:
        match self.kind:
            case "always":
                return "always"
            case "burst" | "ratio":
                return f"{self.kind}:{self.a:g}/{self.b:g}"
            case _:
                return f"{self.kind}:{self.a:g}"


_FORM = re.compile(r"^(?P<kind>[a-z]+)(?::(?P<a>\d+(?:\.\d+)?)(?:/(?P<b>\d+(?:\.\d+)?))?)?$")


def parse_schedule(text: str) -> ScheduleValue:
    """Parse one of :data:`FORMS`. Raises ValueError naming what is allowed."""
    match = _FORM.match(text.strip())
    kind = match["kind"] if match else ""
    if not match or kind not in FORMS:
        raise ValueError(f"{text!r} is not a schedule; allowed: {'; '.join(FORMS.values())}")
    numbers = [float(n) for n in (match["a"], match["b"]) if n is not None]
    wanted = {"always": 0, "burst": 2, "ratio": 2}.get(kind, 1)
    if len(numbers) != wanted or not _in_range(kind, numbers):
        raise ValueError(f"{text!r} does not fit {FORMS[kind]}")
    a, b = [*numbers, 0.0, 0.0][:2]
    return ScheduleValue(kind=kind, a=a, b=b)


def _in_range(kind: str, numbers: list[float]) -> bool:
    if kind == "always":
        return True
    if kind == "probability":
        return 0 < numbers[0] <= 1
    whole = all(n == int(n) and n >= 1 for n in numbers)
    return whole and (kind != "ratio" or numbers[0] <= numbers[1])


def _validate(value: Any) -> Any:
    return parse_schedule(value) if isinstance(value, str) else value


Schedule = Annotated[
    ScheduleValue,
    BeforeValidator(_validate),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "description": "; ".join(FORMS.values())}),
]
"""A pydantic field type: takes and gives the text form."""
