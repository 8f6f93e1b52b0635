"""What was wrong with input that a pydantic model refused, in one line."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError


def first_problem(error: ValidationError, names: Mapping[str, str] | None = None) -> str:
    """The first problem as "field: what is wrong (got VALUE)". `names` gives fields the words the user knows."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    known = names or {}
    field = known.get(field) or known.get(field.partition(".")[0], field)
    if first["type"] == "extra_forbidden":
        return f"{field}: there is no such key"
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "missing" or isinstance(first["input"], dict) else f" (got {first['input']!r})"
    return f"{field}: {message[0].lower()}{message[1:]}{got}" if field else message
