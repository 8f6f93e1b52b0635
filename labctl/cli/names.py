"""Names of faults as a user types them: the catalogue's own, and the aliases of node_agent.aliases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.errors import UnsupportedError
from labctl.hardware.catalog import hardware_catalog
from labctl.hardware.fault import HardwareFault
from node_agent import aliases, errors
from node_agent.catalog import catalog, resolve
from node_agent.fault import Fault

AnyFault = type[Fault] | type[HardwareFault]
"""A fault of a node's kernel, or of the machine below it."""


def known_faults() -> dict[str, AnyFault]:
    """Every fault by name, sorted: those of nodes, and those of the hardware below them."""
    found: dict[str, AnyFault] = {**catalog(), **hardware_catalog()}
    return dict(sorted(found.items()))


def all_aliases() -> list[str]:
    """Every alias, without those that are a fault's own name."""
    return [name for name in aliases.ALIASES if name not in catalog()]


def built_aliases() -> list[str]:
    """Those whose fault is built."""
    return [name for name in all_aliases() if aliases.ALIASES[name].fault in catalog()]


def pending_aliases() -> list[str]:
    """Those whose fault is not built yet."""
    return [name for name in all_aliases() if aliases.ALIASES[name].fault not in catalog()]


def resolve_name(name: str) -> tuple[AnyFault, Mapping[str, Any]]:
    """The fault of a known name and what the name presets.

    Raises :class:`labctl.errors.UnsupportedError`, which ends with 3, for an alias that is pending.
    """
    if name in hardware_catalog():
        return hardware_catalog()[name], {}
    try:
        return resolve(name)
    except errors.UnsupportedError as pending:
        raise UnsupportedError(pending.message, pending.allowed) from None
