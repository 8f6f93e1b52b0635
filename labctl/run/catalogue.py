"""The problems there are, found by looking through the package `problems`, and which revision of them this is.

A module `problems/<family>/<name>.py` with a constant `PROBLEM` holds the problem of that name. What lies below
`problems/workloads` are services, not problems.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from labctl.errors import UsageError
from labctl.nearest import nearest
from labctl.run.problem import Problem

PACKAGE, SERVICES, CONSTANT = "problems", "workloads", "PROBLEM"
_JUDGES = ("labctl.oracles", "labctl.run.episode", "labctl.run.oracle", "labctl.run.verdict", "labctl.run.problem",
           "labctl.run.ledger", "labctl.run.diagnosis")  # fmt: skip
"""What a problem's result depends on beside its own file: what judges it."""

_DIGITS = 12


@dataclass(frozen=True)
class Catalogue:
    """All problems by name, and the revision of their text."""

    problems: dict[str, Problem]
    modules: dict[str, ModuleType]
    revision: str
    home: Path

    def __str__(self) -> str:
        return f"{self.revision} ({len(self.problems)} problems)"

    def find(self, name: str) -> Problem:
        """The problem of that name. Raises :class:`UsageError` with the nearest one."""
        if name not in self.problems:
            hint = nearest(name, list(self.problems), "problems", "labctl problems list")
            raise UsageError(f"there is no problem called {name!r}", hint)
        return self.problems[name]

    def revision_of(self, name: str) -> str:
        """The revision of one problem: its file, what problems share, the services, and what judges it."""
        mine = Path(self.modules[name].__file__ or "")
        others = {Path(module.__file__ or "") for key, module in self.modules.items() if key != name}
        shared = (path for path in _sources(self.home) if path not in others)
        judges = (path for part in _JUDGES for path in _sources_of(part))
        return _digest([mine, *shared, *judges])


@cache
def catalogue() -> Catalogue:
    """The problems of this labctl."""
    return load(PACKAGE)


def load(name: str) -> Catalogue:
    """Find and load all problems of a package. Raises ValueError for a module that holds something else, or a
    problem of another name.
    """
    package = importlib.import_module(name)
    found: dict[str, Problem] = {}
    modules: dict[str, ModuleType] = {}
    for module in _modules(package):
        problem = getattr(module, CONSTANT, None)
        if problem is None:
            continue
        name = module.__name__.rpartition(".")[2]
        if not isinstance(problem, Problem):
            raise ValueError(f"{module.__name__}.{CONSTANT} is no Problem")  # noqa: TRY004 - its text is wrong
        if problem.name != name:
            raise ValueError(f"{module.__name__} holds the problem {problem.name!r}; name both the same")
        if name in found:
            raise ValueError(f"two problems are called {name}")
        found[name], modules[name] = problem, module
    home = _home(package)
    return Catalogue(dict(sorted(found.items())), modules, _digest(_sources(home)), home)


def _home(package: ModuleType) -> Path:
    return Path(next(iter(package.__path__)))


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """All modules of the families, imported."""
    for family in pkgutil.iter_modules(package.__path__):
        if not family.ispkg or family.name == SERVICES:
            continue
        home = importlib.import_module(f"{package.__name__}.{family.name}")
        for info in pkgutil.iter_modules(home.__path__):
            yield importlib.import_module(f"{home.__name__}.{info.name}")


def _sources(home: Path) -> list[Path]:
    """The files below a directory, caches left out."""
    return sorted(p for p in home.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _sources_of(name: str) -> list[Path]:
    """The file of a module, or all below a package."""
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        return _sources(_home(module))
    return [Path(module.__file__ or "")]


def _digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted({*paths}):
        total.update(f"{path.parent.name}/{path.name}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:_DIGITS]
