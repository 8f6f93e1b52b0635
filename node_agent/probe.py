"""What this kernel can do, found out by doing it and undoing it.

A probe is a function marked with :func:`capability` in any module of the fault packages. It tries the thing on
objects of its own, named `groundfault-probe-…`, removes them, and returns None, or raises :class:`Lacking`. No
version is compared and no configuration file is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from node_agent.catalog import fault_modules
from node_agent.fault import Capability
from node_agent.host import CommandError, Host

ProbeFunction = Callable[[Host], None]
_MARK = "__groundfault_capability__"


class Lacking(Exception):
    """The kernel would not. `remedy` is what the owner of the node can do about it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def capability(name: str, *, remedy: str = "") -> Callable[[ProbeFunction], ProbeFunction]:
    """Mark a function as the probe of capability `name`. `remedy` is told where an OSError gives none."""

    def mark(function: ProbeFunction) -> ProbeFunction:
        setattr(function, _MARK, (name, remedy))
        return function

    return mark


def probes() -> dict[str, tuple[ProbeFunction, str]]:
    """Every probe of the fault packages and its default remedy, by capability name, sorted."""
    found: dict[str, tuple[ProbeFunction, str]] = {}
    for module in fault_modules():
        for value in vars(module).values():
            marked = getattr(value, _MARK, None)
            if callable(value) and marked:
                found[marked[0]] = (value, marked[1])
    return dict(sorted(found.items()))


def run_probes(host: Host, goes_on: Callable[[], bool] = lambda: True) -> Mapping[str, Capability]:
    """Run them all. A probe that fails with the kernel's own error gives that as the reason.

    Where it does not go on, no further probe begins, and what was not tried is not available.
    """
    answers: dict[str, Capability] = {}
    for name, (function, remedy) in probes().items():
        if not goes_on():
            answers[name] = Capability(name=name, available=False, reason="the agent is ending", remedy=remedy)
            continue
        try:
            function(host)
        except Lacking as lack:
            answers[name] = Capability(
                name=name, available=False, reason=lack.reason, remedy=lack.remedy or remedy
            )
        except (OSError, CommandError) as error:
            answers[name] = Capability(name=name, available=False, reason=str(error), remedy=remedy)
        else:
            answers[name] = Capability(name=name, available=True)
    return answers
