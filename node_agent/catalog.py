"""The faults there are, found by looking through the packages that hold them."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from node_agent.errors import NotFoundError
from node_agent.fault import Fault

FAULT_PACKAGES = ("node_agent.faults", "disk_faults", "ebpf")


def fault_modules() -> Iterator[ModuleType]:
    """Every module of the fault packages, imported."""
    for name in FAULT_PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{name}.{module.name}")


@cache
def catalog() -> dict[str, type[Fault]]:
    """Fault classes by name, sorted. Raises ValueError when two classes claim one name."""
    found: dict[str, type[Fault]] = {}
    for module in fault_modules():
        for value in vars(module).values():
            is_fault = isinstance(value, type) and issubclass(value, Fault) and "name" in vars(value)
            if not is_fault or value.__module__ != module.__name__:
                continue
            if value.name in found:
                raise ValueError(f"two faults are called {value.name}")
            found[value.name] = value
    return dict(sorted(found.items()))


def find_fault(name: str) -> type[Fault]:
    """The fault class of that name. Raises :class:`NotFoundError` with the nearest names."""
    faults = catalog()
    if name in faults:
        return faults[name]
    near = difflib.get_close_matches(name, faults, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"faults: {', '.join(faults)}"
    raise NotFoundError(f"there is no fault called {name!r}", field="fault", allowed=hint)
