"""Where a fault lies, by its name: the package of the catalogue that it was found in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from labctl.hardware.catalog import hardware_catalog
from node_agent.catalog import FAMILIES, catalog

HARDWARE, NO_FAULT, UNKNOWN = "hardware", "no fault", "unknown"
_TITLES = {"disk_faults": "disk", "ebpf": "system calls"}


@cache
def layers() -> dict[str, str]:
    """The layer of every fault of either catalogue. A fault that is in both is of the operating system."""
    found = dict.fromkeys(hardware_catalog(), HARDWARE)
    return found | {name: _layer(fault.__module__) for name, fault in catalog().items()}


def layer_of(faults: Iterable[str]) -> str:
    """The layer of these faults, joined where there are several; of no fault at all `no fault`."""
    known = layers()
    return " + ".join(sorted({known.get(name, UNKNOWN) for name in faults})) or NO_FAULT


def _layer(module: str) -> str:
    family, _, rest = module.partition(".")
    if module.startswith(f"{FAMILIES}."):
        return module.removeprefix(f"{FAMILIES}.").partition(".")[0]
    return _TITLES.get(family, rest or family)
