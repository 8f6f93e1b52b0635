"""What a helper process and the agent say to each other: lines of text on its standard input and output.

First the agent sends one line, the settings as JSON. The helper does its work and writes `ready`, or writes its
reason to standard error and ends with status 1. From then on it answers every line with one line of JSON. It ends
when its standard input does. Only the standard library: a helper may run under another Python than the agent.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY = "ready"
REFUSED = 1

Report = dict[str, Any]
"""`counters`: name to number, `hits` among them; `attached`: how many programs or processes it has hold of now;
`notes` for people; `samples`: the latest hits, with the fields of :class:`node_agent.fault.Hit`."""


NAMES = ("hits", "seen", "matched")
"""What the first counters of a program's map `hits` are called."""


def counter_names(count: int) -> tuple[str, ...]:
    """Names for the counters of a map of that many."""
    return (*NAMES[:count], *(f"hits[{n}]" for n in range(len(NAMES), count)))


class RefusedError(Exception):
    """The helper cannot do what its settings ask for; the text is for the user."""


def script(name: str) -> str:
    """The path of a runner of this package."""
    return str(Path(__file__).with_name(f"{name}.py"))


def settings() -> dict[str, Any]:
    """The agent's first line. Raises ValueError where it is not that."""
    found = json.loads(sys.stdin.readline())
    if not isinstance(found, dict):
        raise ValueError("settings are an object")  # noqa: TRY004
    return found


def serve(start: Callable[[dict[str, Any]], Callable[[], Report]]) -> int:
    """The whole life of a helper: `start` does the work and returns what reports on it. Gives the exit status."""
    try:
        report = start(settings())
    except RefusedError as refused:
        print(refused, file=sys.stderr, flush=True)
        return REFUSED
    print(READY, flush=True)
    for _ in sys.stdin:
        print(json.dumps(report()), flush=True)
    return 0


def parse_report(text: str) -> Report:
    """What a helper answered. Raises OSError (EPROTO) where that is not a report."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    counters = found.get("counters") if isinstance(found, dict) else None
    if not isinstance(counters, dict) or not all(isinstance(n, int) and n >= 0 for n in counters.values()):
        raise OSError(errno.EPROTO, f"the helper's answer is not a report: {text[:100]!r}")
    return {
        "attached": int(found.get("attached", 0)),
        "counters": counters,
        "notes": tuple(found.get("notes", ())),
        "samples": tuple(found.get("samples", ())),
    }
