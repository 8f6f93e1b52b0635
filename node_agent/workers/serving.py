"""The life of a worker: settings on standard input, `ready`, an answer a line, and its end with standard input."""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

READY = "ready"
REFUSED = 1
"""Exit status of a worker that has given its reason on standard error."""


class RefusedError(Exception):
    """The worker cannot do what it is asked for; the text is for the user."""


def settings() -> dict[str, Any]:
    """The first line of standard input, as JSON. Read byte by byte: what follows is for :func:`serve`."""
    line = bytearray()
    while (byte := os.read(0, 1)) and byte != b"\n":
        line += byte
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("settings are an object")  # noqa: TRY004
    return found


def serve(
    report: Callable[[], Mapping[str, Any]], *, every_s: float | None = None,
    tick: Callable[[], None] = lambda: None, source: IO[bytes] | Any = None,
    take: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Say `ready`; then call `tick` that often, `take` whenever `source` can be read, and answer each line of
    standard input with the report. Returns when standard input ends.
    """
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        if source is not None:
            waiting.register(source, selectors.EVENT_READ, take)
        print(READY, flush=True)
        due = time.monotonic() + (every_s or 0)
        while True:
            rest = None if every_s is None else max(0.0, due - time.monotonic())
            for key, _ in waiting.select(rest):
                if key.data is not None:
                    key.data()
                    continue
                said = os.read(0, 65536)
                if not said:
                    return 0
                for _ in range(said.count(b"\n")):
                    print(json.dumps(report()), flush=True)
            if every_s is not None and time.monotonic() >= due:
                tick()
                due = time.monotonic() + every_s


def main_of(run: Callable[[dict[str, Any]], int]) -> int:
    """Run a worker with its settings; a refusal is told on standard error and becomes the exit status."""
    try:
        return run(settings())
    except RefusedError as refused:
        print(refused, file=sys.stderr, flush=True)
        return REFUSED
