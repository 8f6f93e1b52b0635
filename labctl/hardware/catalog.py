"""The hardware faults there are, found by looking through the package that holds them."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from labctl.hardware import faults
from labctl.hardware.fault import HardwareFault


@cache
def hardware_catalog() -> dict[str, type[HardwareFault]]:
    """Fault classes by name, sorted. Raises ValueError when two classes claim one name."""
    found: dict[str, type[HardwareFault]] = {}
    for info in pkgutil.iter_modules(faults.__path__):
        module = importlib.import_module(f"{faults.__name__}.{info.name}")
        for value in vars(module).values():
            ours = isinstance(value, type) and issubclass(value, HardwareFault) and "name" in vars(value)
            if not ours or value.__module__ != module.__name__:
                continue
            if value.name in found:
                raise ValueError(f"two hardware faults are called {value.name}")
            found[value.name] = value
    return dict(sorted(found.items()))
