"""Keys of configuration files, changed line by line, and changed back. Pure.

Understood are lines of `key = value`, `key: value` and `key value`, with quotes, a comma or semicolon at the end
and a comment behind: INI, TOML and nginx, PostgreSQL, Redis, unit files, shell variables, members of JSON and YAML
that have a line of their own. Bytes are taken as Latin-1, so that any file comes back as it was.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

_COMMENT = re.compile(r"\s*([#;]|//)")
_SECTION = re.compile(r"\s*\[\[?\s*(.*?)\s*\]?\]\s*([#;].*)?$")
_ANY_KEY = re.compile(r"\s*[\"']?[A-Za-z_][\w.-]*[\"']?(\s*[=:]\s*|\s+)\S")
_TAIL = re.compile(r"\s*[,;]?(\s+[#;].*|\s+//.*)?$")
_QUOTES = "\"'"
_JSON = re.compile(r"\s*(\{|\[\s*[\[{\"])")


class EditError(ValueError):
    """The key cannot be set in this file; the text says why."""


class Edit(BaseModel):
    """Whole lines `old` at a place, in bytes from the beginning, become `new`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: int
    old: str
    new: str


def digest(data: bytes) -> str:
    """What tells one content from another."""
    return hashlib.sha256(data).hexdigest()


def set_key(data: bytes, key: str, value: str, section: str = "") -> tuple[Edit, ...]:
    """The edits that give a key another value wherever it is set, or add it where it is not.

    Lines that say it in a comment do not count. Raises :class:`EditError`.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", data.decode("latin-1"))
    inside = _inside(lines, section)
    pattern = re.compile(
        rf"(?P<head>\s*(?:export\s+|set\s+)?(?P<quote>[\"']?){re.escape(key)}(?P=quote)(?:\s*[=:]\s*|\s+))(?P<rest>.*)",
        re.DOTALL,
    )
    edits, at = [], 0
    for number, line in enumerate(lines):
        found = pattern.match(line) if number in inside and not _COMMENT.match(line) else None
        if found and found["rest"].strip():
            edits.append(Edit(at=at, old=line, new=found["head"] + _with_value(found["rest"], value)))
        at += len(line)
    return tuple(edits) or (_added(lines, inside, key, value),)


def _inside(lines: Sequence[str], section: str) -> range:
    """The lines of a section; without one, those before the first section, or all where the key is nested."""
    if not section:
        return range(len(lines))
    start = None
    for number, line in enumerate(lines):
        found = _SECTION.match(line)
        if found and start is not None:
            return range(start, number)
        if found and found[1] == section:
            start = number + 1
    if start is None:
        raise EditError(f"there is no section [{section}]")
    return range(start, len(lines))


def _with_value(rest: str, value: str) -> str:
    """The rest of a line with another value, in the quotes of the old one, and the same end."""
    body = rest.rstrip("\r\n")
    end = rest[len(body) :]
    quote = body[0] if body[0] in _QUOTES else ""
    closing = body.find(quote, 1) + 1 if quote else 0
    if closing:
        wrapped = value if value[:1] == quote else f"{quote}{value}{quote}"
        return wrapped + body[closing:] + end
    tail = _TAIL.search(body)
    return value + (tail[0] if tail else "") + end


def _added(lines: Sequence[str], inside: range, key: str, value: str) -> Edit:
    if _JSON.match("".join(lines)):
        raise EditError(f"{key} is in no line of its own")
    if any(_SECTION.match(lines[n]) for n in inside):
        raise EditError(f"{key} is not set in this file, which has sections")
    where = max((n + 1 for n in inside if lines[n].strip()), default=inside.start)
    at = sum(len(line) for line in lines[:where])
    last = lines[where - 1] if where else ""
    eol = "\r\n" if last.endswith("\r\n") else "\n"
    line = f"{key}{_separator(lines)}{value}{eol}"
    if last and not last.endswith("\n"):  # a last line without an end becomes one with an end
        return Edit(at=at - len(last), old=last, new=f"{last}{eol}{line}")
    return Edit(at=at, old="", new=line)


def _separator(lines: Sequence[str]) -> str:
    """How most lines of the file part key and value."""
    seen = Counter(m[1] for m in map(_ANY_KEY.match, lines) if m)
    for common, _ in seen.most_common(1):
        return common if common.strip() else " "
    return " = "


def apply_edits(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The bytes after the edits."""
    text, shift = data.decode("latin-1"), 0
    for edit in edits:
        at = edit.at + shift
        assert text[at : at + len(edit.old)] == edit.old
        text = text[:at] + edit.new + text[at + len(edit.old) :]
        shift += len(edit.new) - len(edit.old)
    return text.encode("latin-1")


def take_back(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The bytes without those of the edits that still stand as whole lines; what others have changed stays."""
    text = data.decode("latin-1")
    for edit, at in reversed(standing(data, edits)):
        text = text[:at] + edit.old + text[at + len(edit.new) :]
    return text.encode("latin-1")


def standing(data: bytes, edits: Sequence[Edit]) -> list[tuple[Edit, int]]:
    """The edits whose new lines are there, and where, in order: at their place, or at the nearest after others."""
    text, shift, after = data.decode("latin-1"), 0, 0
    found: list[tuple[Edit, int]] = []
    for edit in edits:
        wanted = edit.at + shift
        same = (m.start() for m in re.finditer(f"^{re.escape(edit.new)}", text, re.MULTILINE))
        places = sorted((abs(at - wanted), at) for at in same if at >= after)
        if places:
            found.append((edit, places[0][1]))
            after = places[0][1] + len(edit.new)
        shift += len(edit.new) - len(edit.old)
    return found
