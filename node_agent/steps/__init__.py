"""The closed set of steps. Each is a module of this package; a plan is a tuple of them.

:func:`load_step` turns the journal's JSON back into a step by its `kind`. The set is found by looking at the
package's modules, so a new kind of step edits no list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

from node_agent.steps.base import Resource, Step, Undo

__all__ = ["Resource", "Step", "Undo", "load_step", "step_kinds"]


@cache
def step_kinds() -> dict[str, type[Step]]:
    """Every step class of this package by its `kind`."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {cls.model_fields["kind"].default: cls for cls in _below(Step) if "kind" in cls.model_fields}


def _below(base: type[Step]) -> Iterator[type[Step]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _below(cls)


def load_step(data: dict[str, Any]) -> Step:
    """The step that `step.model_dump()` was made of. Raises ValueError for an unknown kind or bad fields."""
    kind = data.get("kind")
    cls = step_kinds().get(str(kind))
    if cls is None:
        raise ValueError(f"unknown step kind {kind!r}")
    return cls.model_validate(data)
