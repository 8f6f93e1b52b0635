"""Signs: what a real failure of some kind leaves on a machine, and whether it was seen since a mark.

A fault declares the lines of the kernel log and the counters that a diagnosing operator would find. Whether they
are there is read from the kernel, so evidence that was expected and did not come is told, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from node_agent.errors import Refusal
from node_agent.host import LogRecord, Reader

_PLACES = ("/sys/", "/proc/")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return text


def _kernel_file(path: str) -> str:
    if path and (not path.startswith(_PLACES) or ".." in path):
        raise ValueError(f"{path!r}; allowed: a file below {' or '.join(_PLACES)}")
    return path


class Sign(_Value):
    """One sign. `log`: a record of the kernel log matches `pattern` (searched, not anchored). `counter`: number
    `nth`, from 0, of the file at `path`, which may be a pattern (then the sum over its matches), has risen; or the
    one of that `name`, such as "Tcp RetransSegs", in a file of headings and values (/proc/net/snmp, netstat).

    `when` says in words what has to happen first, such as "once the file is read"; empty: by itself.
    """

    kind: Literal["log", "counter"]
    what: str
    pattern: Annotated[str, AfterValidator(_compiles)] = ""
    path: Annotated[str, AfterValidator(_kernel_file)] = ""
    nth: int = Field(default=0, ge=0)
    name: str = Field(default="", pattern=r"^(\w+ \w+)?$")
    when: str = ""


class SignSeen(_Value):
    """Whether a sign was seen, and what was found: the last line that matched, or "before -> after"."""

    kind: str
    what: str
    when: str
    seen: bool
    found: str


class Mark(_Value):
    """Where to begin: the next record of the kernel log, and the counters as they stood, by path and nth."""

    log: int = 0
    counters: Mapping[str, int] = Field(default_factory=dict)


def in_log(what: str, pattern: str, when: str = "") -> Sign:
    """A line of the kernel log."""
    return Sign(kind="log", what=what, pattern=pattern, when=when)


def rises(what: str, path: str, nth: int = 0, when: str = "") -> Sign:
    """A counter of the kernel's."""
    return Sign(kind="counter", what=what, path=path, nth=nth, when=when)


def named(what: str, path: str, name: str, when: str = "") -> Sign:
    """A counter that has a name in /proc/net/snmp or /proc/net/netstat, such as "Tcp RetransSegs"."""
    return Sign(kind="counter", what=what, path=path, name=name, when=when)


def mark(reader: Reader, signs: Iterable[Sign]) -> Mark:
    """Now, for :func:`seen` later."""
    counters = {_key(s): _value(reader, s) for s in signs if s.kind == "counter"}
    return Mark(log=reader.log.mark(), counters=counters)


def seen(reader: Reader, signs: Iterable[Sign], since: Mark) -> tuple[SignSeen, ...]:
    """Which of the signs there were since the mark, in the order given."""
    wanted = tuple(signs)
    records = reader.log.since(since.log)[0] if any(s.kind == "log" for s in wanted) else ()
    return tuple(
        _in_records(sign, records) if sign.kind == "log" else _risen(reader, sign, since) for sign in wanted
    )


def _in_records(sign: Sign, records: Iterable[LogRecord]) -> SignSeen:
    pattern = re.compile(sign.pattern)
    found = next((r.text for r in reversed(tuple(records)) if pattern.search(r.text)), "")
    return SignSeen(kind=sign.kind, what=sign.what, when=sign.when, seen=bool(found), found=found)


def _risen(reader: Reader, sign: Sign, since: Mark) -> SignSeen:
    before, after = since.counters.get(_key(sign), 0), _value(reader, sign)
    return SignSeen(
        kind=sign.kind, what=sign.what, when=sign.when, seen=after > before, found=f"{before} -> {after}"
    )


def _key(sign: Sign) -> str:
    return f"{sign.path} {sign.name or sign.nth}"


def _value(reader: Reader, sign: Sign) -> int:
    """The number now; 0 where the file is not there or has no such number, as for a device that is gone."""
    paths = reader.glob(sign.path) if any(c in sign.path for c in "*?[") else (sign.path,)
    return sum(_number(reader, path, sign.nth, sign.name) for path in paths)


def _number(reader: Reader, path: str, nth: int, name: str) -> int:
    try:
        text = reader.read_text(path)
    except OSError:
        return 0
    if name:
        return _below_heading(text, *name.split())
    numbers = _NUMBER.findall(text)
    return int(numbers[nth], 0) if nth < len(numbers) else 0


def _below_heading(text: str, group: str, column: str) -> int:
    """Of two lines that begin with the group, headings and values, one value; 0 where it is not there."""
    rows = [line.split() for line in text.splitlines() if line.startswith(f"{group}:")]
    for headings, values in zip(rows[::2], rows[1::2], strict=False):
        if column in headings:
            return int(values[headings.index(column)])
    return 0


def mark_of(data: object) -> Mark:
    """A mark from JSON data. Raises :class:`Refusal`."""
    try:
        return Mark.model_validate(data)
    except ValueError as error:
        raise Refusal(f"mark: {error}", field="mark", allowed="what an earlier look answered") from None


def signs_of(data: object) -> tuple[Sign, ...]:
    """Signs from JSON data. Raises :class:`Refusal`."""
    if not isinstance(data, list) or len(data) > 64:
        raise Refusal("signs: no list of at most 64", field="signs", allowed="a list of signs")
    try:
        return tuple(Sign.model_validate(one) for one in data)
    except ValueError as error:
        raise Refusal(f"signs: {error}", field="signs", allowed="signs as data") from None
