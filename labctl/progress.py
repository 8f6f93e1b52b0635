"""Telling people what is happening: a bar on a terminal, plain lines elsewhere, nothing under --json."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Task(Protocol):
    """One piece of work in hand."""

    def update(self, message: str, fraction: float | None = None) -> None:
        """Say what is happening now; `fraction` (0 to 1) where it is known."""


class Progress(Protocol):
    """Where long work reports to."""

    def task(self, title: str) -> AbstractContextManager[Task]:
        """A context for one piece of work; ending it says how long it took."""

    def note(self, message: str) -> None:
        """A line worth keeping."""


class _SilentTask:
    def update(self, message: str, fraction: float | None = None) -> None:
        pass


class SilentProgress:
    """For --json and for tests: says nothing."""

    @contextmanager
    def task(self, title: str) -> Iterator[Task]:
        yield _SilentTask()

    def note(self, message: str) -> None:
        pass


class _PlainTask:
    def __init__(self, title: str, out: TextIO) -> None:
        self._title, self._out, self._last = title, out, ""

    def update(self, message: str, fraction: float | None = None) -> None:
        if message != self._last:
            self._last = message
            print(f"  {self._title}: {message}", file=self._out, flush=True)


class PlainProgress:
    """One line a change, for logs and pipes. Writes to standard error."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr

    @contextmanager
    def task(self, title: str) -> Iterator[Task]:
        start = time.monotonic()
        print(f"{title} ...", file=self._out, flush=True)
        yield _PlainTask(title, self._out)
        print(f"{title}: done in {time.monotonic() - start:.1f} s", file=self._out, flush=True)

    def note(self, message: str) -> None:
        print(message, file=self._out, flush=True)


class _BarTask:
    def __init__(self, bar: RichProgress, title: str) -> None:
        self._bar, self._title = bar, title
        self._id = bar.add_task(title, total=None, what="")

    def update(self, message: str, fraction: float | None = None) -> None:
        if fraction is None:
            self._bar.update(self._id, what=message)
        else:
            self._bar.update(self._id, what=message, total=1.0, completed=fraction)


class BarProgress:
    """A live bar for terminals. Writes to standard error, so that standard output stays the answer."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextmanager
    def task(self, title: str) -> Iterator[Task]:
        start = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[what]}"),
        )
        with RichProgress(*columns, console=self._console, transient=True) as bar:
            yield _BarTask(bar, title)
        self.note(f"[green]✓[/] {title} [dim]({time.monotonic() - start:.1f} s)[/]")

    def note(self, message: str) -> None:
        self._console.print(message, highlight=False)


def progress_for_stderr() -> Progress:
    """The bar on a terminal, plain lines elsewhere."""
    return BarProgress() if sys.stderr.isatty() else PlainProgress()
