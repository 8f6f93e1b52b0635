"""The faults there are, found by looking through the packages that hold them."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from node_agent import aliases
from node_agent.errors import NotFoundError, Refusal, UnsupportedError
from node_agent.fault import Fault, Missing, build_fault

FAMILIES, FAULT_PACKAGES = "node_agent.faults", ("disk_faults", "ebpf")
"""The package whose packages hold a family of faults each, and those that hold one themselves."""


def fault_packages() -> tuple[str, ...]:
    """The packages that hold faults, by name."""
    families = pkgutil.iter_modules(importlib.import_module(FAMILIES).__path__)
    return (*(f"{FAMILIES}.{family.name}" for family in families if family.ispkg), *FAULT_PACKAGES)


def fault_modules() -> Iterator[ModuleType]:
    """Every module of the fault packages, imported."""
    for name in fault_packages():
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
    """The fault class of that very name. Raises :class:`NotFoundError` with near names, also aliases."""
    faults = catalog()
    if name in faults:
        return faults[name]
    near = difflib.get_close_matches(name, [*faults, *aliases.ALIASES], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"faults: {', '.join(faults)}"
    raise NotFoundError(f"there is no fault called {name!r}", field="fault", allowed=hint)


def resolve(name: str) -> tuple[type[Fault], Mapping[str, Any]]:
    """The fault of a name or an alias, with the parameters that the alias presets.

    A fault's own name goes before an alias. Raises :class:`NotFoundError`, and :class:`UnsupportedError` for an
    alias whose fault is not built yet.
    """
    alias = aliases.ALIASES.get(name)
    if alias is None or name in catalog():
        return find_fault(name), {}
    if alias.fault not in catalog():
        raise UnsupportedError(
            f"{name} is pending: {alias.fault} is not built yet ({alias.promise})",
            field="fault",
            allowed="a fault of: labctl faults list",
        )
    return catalog()[alias.fault], alias.presets


def make_fault(name: str, parameters: Mapping[str, Any]) -> Fault:
    """A fault by name or alias; `parameters` go before what the alias presets. Raises as :func:`resolve` does.

    Raises :class:`node_agent.errors.Refusal` for parameters that are wrong.
    """
    cls, presets = resolve(name)
    return build_fault(cls, {**presets, **parameters})


def sample_fault(cls: type[Fault]) -> Fault | Missing:
    """A fault with its defaults, or with the first of its examples that is valid, to ask what it requires."""
    for parameters in ({}, *cls.examples):
        try:
            return build_fault(cls, parameters)
        except Refusal as refusal:
            reason = refusal.message
    return Missing(capability="an example", reason=f"none of its examples is valid: {reason}", remedy="")
