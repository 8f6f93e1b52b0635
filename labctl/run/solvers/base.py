"""What all solvers have in common: a directory, a desk, the account on the nodes; and an end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.lab.model import Node
from labctl.run.diagnosis import Diagnosis
from labctl.run.problem import Problem
from labctl.run.solvers.access import Access
from labctl.run.solvers.desk import Counter, Desk, Tool
from labctl.run.solvers.directory import Directory, make_directory
from labctl.run.solvers.usage import keep_usage

LONGEST_LOG = 16 << 20
"""Bytes of a solver's output that a record keeps."""


class Log:
    """A solver's output, in the record. What is more than it takes, or than there is room for, is left out."""

    def __init__(self, path: Path, most: int = LONGEST_LOG) -> None:
        self.path, self._left = path, most
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, content: bytes) -> None:
        """Add to it."""
        kept, self._left = content[: self._left], max(0, self._left - len(content))
        with contextlib.suppress(OSError):  # a full disk is met by what matters more
            os.write(self._file, kept)

    def close(self) -> None:
        """Twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@dataclass(frozen=True)
class Setting:
    """Where a solver works: which problem, on which nodes, with what beside SSH. `note` writes to the record."""

    problem: Problem
    nodes: Callable[[], Sequence[Node]]
    access: Access
    tools: Mapping[str, Tool]
    note: Callable[..., None]
    log: Path


class DeskSolver:
    """See :class:`labctl.run.episode.Solver`. Subclasses say what happens between `begin` and `stop`."""

    open_shell = False
    """Whether it has SSH whatever the problem's surface is: what the problem itself brings has."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.desk = Desk(setting.problem.vocabulary, setting.tools, setting.note)
        self._directory: Directory | None = None
        self._counter: Counter | None = None
        self._log: Log | None = None
        self._over = False

    @property
    def directory(self) -> Directory:
        """Its directory. Only from `start` to `end`."""
        assert self._directory is not None
        return self._directory

    @property
    def log(self) -> Log:
        """Its output. From `start` on."""
        assert self._log is not None
        return self._log

    def start(self) -> None:
        """Give it what it needs, and let it begin."""
        setting = self.setting
        self._log = Log(setting.log)
        self._directory = make_directory(setting.problem, setting.nodes(), open_shell=self.open_shell)
        if self.open_shell or setting.problem.surface != "confined":
            setting.access.open(self._directory.public_key)
        self._counter = Counter(self._directory.socket, self.desk)
        self.begin()

    def diagnosis(self) -> Diagnosis | None:
        """The last one that was submitted."""
        return self.desk.diagnosis

    def declared(self) -> bool:
        """Whether the repair was declared complete."""
        return self.desk.declared

    def ended(self) -> bool:
        """Whether it has gone."""
        raise NotImplementedError

    def end(self) -> None:
        """Its processes and sessions end, its directory goes. Twice is fine."""
        if self._over or self._directory is None:
            return
        self.stop()
        self.desk.close()
        if self._counter:
            self._counter.end()
        for text in self.setting.access.close():
            self.setting.note("unclosed", what=text)
        keep_usage(self._directory.path, self.setting.log.parent)
        self._directory.remove()
        self.log.close()
        self._over = True

    def begin(self) -> None:
        """Start whatever repairs."""
        raise NotImplementedError

    def stop(self) -> None:
        """End what it runs on this machine. Twice is fine."""
        raise NotImplementedError
