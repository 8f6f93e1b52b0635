"""All injections of one node, whether its agent keeps them or the lab does, below its operating system.

The commands ask this and need not know where a fault is planted. Ids are one space: an id names one injection of a
node. While a hardware fault keeps the agent from answering (a machine that is off, or frozen), it is not asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from labctl.errors import UnsupportedError, UsageError
from labctl.hardware.catalog import hardware_catalog
from labctl.hardware.standing_in import StandIn, deputy_of, stand_in
from node_agent.api.views import InjectionList, PlanView
from node_agent.injection import ENDED, InjectionView

if TYPE_CHECKING:
    from labctl.hardware.injector import HardwareInjector
    from labctl.transport.client import AgentClient, Stop

QUICK_S = 15.0


class Keeper:
    """See :class:`labctl.transport.client.AgentClient`, whose methods these are.

    `hardware` is None where the lab has no hold of the node's machine; `provider` says whose it is then.
    """

    def __init__(
        self,
        agent: Callable[[], AgentClient],
        hardware: HardwareInjector | None,
        provider: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._agent, self._below, self._provider, self._sleep = agent, hardware, provider, sleep
        self._decided: dict[str, StandIn | None] = {}

    def plan(self, injection_id: str, fault: str, parameters: Mapping[str, Any]) -> PlanView:
        """What :meth:`apply` would do now."""
        instead = self._instead(injection_id, fault, parameters)
        if instead:
            plan = self._hardware(fault).plan(injection_id, instead.fault, instead.parameters)
            return plan.model_copy(update={"warnings": (*plan.warnings, instead.note)})
        if fault in hardware_catalog():
            return self._hardware(fault).plan(injection_id, fault, parameters)
        return self._agent().plan(injection_id, fault, parameters)

    def apply(
        self, injection_id: str, fault: str, parameters: Mapping[str, Any], lease_s: float = 0
    ) -> InjectionView:
        """Plant a fault."""
        below = self._below.list(ended=True, ids=(injection_id,)) if self._below else ()
        deputy = deputy_of(fault)
        if below and deputy is not None and below[0].fault == deputy.name:
            return below[0]  # the same id is the same injection
        instead = None if below else self._instead(injection_id, fault, parameters)
        if instead:
            fault, parameters = instead.fault, instead.parameters
        if fault in hardware_catalog():
            self._refuse_known(self.list_above(injection_id))
            return self._hardware(fault).apply(injection_id, fault, parameters, lease_s)
        self._refuse_known(below)
        return self._agent().apply(injection_id, fault, parameters, lease_s)

    def list(self, ended: bool = False, ids: tuple[str, ...] = (), timeout_s: float = QUICK_S) -> InjectionList:
        """Injections with evidence read now; `ended` adds those that are over, `ids` picks."""
        below = self._below.list(ended, ids) if self._below else ()
        stopped = self._below is not None and self._below.journal.stopped
        if (ids and {one.id for one in below} >= set(ids)) or self.silent is not None:
            return InjectionList(injections=below, stopped=stopped)
        above = self._agent().list(ended=ended, ids=ids, timeout_s=timeout_s)
        return InjectionList(injections=(*above.injections, *below), stopped=above.stopped or stopped)

    def recover(self, ids: tuple[str, ...] = (), everything: bool = False, stop: Stop = "keep") -> InjectionList:
        """End injections: those of `ids`, or all. The hardware goes first, so that the agent can answer."""
        everything = everything or stop == "set"
        below: tuple[InjectionView, ...] = ()
        if self._below:
            if stop != "keep":
                self._below.journal.set_stopped(stop == "set")
            here = tuple(one.id for one in self._below.journal.records() if one.id in ids)
            if here or everything:
                below = self._below.recover(here, everything, "stop" if stop == "set" else "recover")
        above_ids = tuple(i for i in ids if i not in {one.id for one in below})
        if (ids and not above_ids) or (self.silent is not None and below):
            return InjectionList(injections=below, stopped=stop == "set")
        above = self._agent().recover(ids=above_ids, everything=everything and stop == "keep", stop=stop)
        return InjectionList(injections=(*above.injections, *below), stopped=above.stopped)

    def extend(self, injection_id: str, lease_s: float) -> InjectionView:
        """A new lease for an active injection, counted from now."""
        if self._below and self._below.journal.find(injection_id):
            return self._below.extend(injection_id, lease_s)
        return self._agent().extend(injection_id, lease_s)

    def watch(self, injection_id: str, interval_s: float) -> Iterator[InjectionView]:
        """An injection at each interval until it has ended."""
        if not (self._below and self._below.journal.find(injection_id)):
            yield from self._agent().watch(injection_id, interval_s)
            return
        while True:
            for one in self._below.list(ended=True, ids=(injection_id,)):
                yield one
                if one.state in (*ENDED, "stuck"):
                    return
            self._sleep(interval_s)

    @property
    def silent(self) -> InjectionView | None:
        """The live hardware injection that keeps the agent from answering."""
        return self._below.silent if self._below else None

    @property
    def below(self) -> tuple[InjectionView, ...]:
        """The live hardware injections, without asking the machine."""
        return self._below.known() if self._below else ()

    def list_above(self, injection_id: str) -> tuple[InjectionView, ...]:
        """What the agent knows under an id; nothing while it cannot answer."""
        if self.silent is not None:
            return ()
        return self._agent().list(ended=True, ids=(injection_id,)).injections

    def _instead(self, injection_id: str, fault: str, parameters: Mapping[str, Any]) -> StandIn | None:
        """Decided once for an id: what was planned is planted."""
        if injection_id not in self._decided:
            self._decided[injection_id] = stand_in(fault, parameters, self._below, self._agent)
        return self._decided[injection_id]

    def _hardware(self, fault: str) -> HardwareInjector:
        if self._below is None:
            raise UnsupportedError(
                f"{fault} is planted below the operating system, and provider {self._provider} cannot reach there",
                "take a lab of virtual machines: labctl up --lab NAME",
            )
        return self._below

    def _refuse_known(self, found: tuple[InjectionView, ...]) -> None:
        if found:
            raise UsageError(
                f"{found[0].node}: {found[0].id} is another injection, of {found[0].fault}", "another --id"
            )
