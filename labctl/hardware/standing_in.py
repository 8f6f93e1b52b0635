"""A hardware fault in the place of a node's fault, where that says the same and leaves better evidence.

A node's fault with a parameter `backend` may be asked for in the kernel (`dm`) or below it (`hypervisor`); `auto`
takes the hardware where the lab has a hold of it, the parameters can be said there, and nobody holds that part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labctl.errors import UnsupportedError, UsageError
from labctl.hardware.catalog import hardware_catalog

if TYPE_CHECKING:
    from labctl.hardware.fault import HardwareFault
    from labctl.hardware.injector import HardwareInjector
    from labctl.transport.client import AgentClient

BACKEND, BELOW = "backend", "hypervisor"


@dataclass(frozen=True)
class StandIn:
    """What is planted instead."""

    fault: str
    parameters: Mapping[str, Any]
    note: str


def deputy_of(fault: str) -> type[HardwareFault] | None:
    """The hardware fault that stands in for a fault of nodes."""
    return next((one for one in hardware_catalog().values() if one.stands_in_for == fault), None)


def stand_in(
    fault: str,
    parameters: Mapping[str, Any],
    below: HardwareInjector | None,
    agent: Callable[[], AgentClient],
) -> StandIn | None:
    """What to plant below the operating system instead; None: plant it on the node, as it is.

    Raises :class:`UnsupportedError` and :class:`UsageError` where the hardware is asked for and cannot be had.
    """
    deputy, wanted = deputy_of(fault), parameters.get(BACKEND, "")
    if deputy is None or wanted not in ("auto", BELOW):
        return None
    if below is None:
        if wanted == BELOW:
            raise UnsupportedError(
                f"--{BACKEND} {BELOW}: this lab has no hold of the machine below the node", f"--{BACKEND} dm"
            )
        return None
    if wanted == "auto" and below.holder_of(deputy.holds):
        return None
    found = agent().plan("where-is-it", fault, {**parameters, BACKEND: "dm"})
    instead = None if found.missing else deputy.instead_of(parameters, found.target_data)
    if instead is None:
        if wanted == BELOW:
            raise UsageError(
                f"--{BACKEND} {BELOW}: {deputy.name} cannot do what these parameters say",
                f"--{BACKEND} dm; or a place on the lab's data disk, without a schedule",
            )
        return None
    note = f"planted in the hardware, as {deputy.name}; --{BACKEND} dm plants it in the node's kernel"
    return StandIn(deputy.name, instead, note)
