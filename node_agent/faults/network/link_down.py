"""link_down: an interface of the node loses its link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign
from node_agent.steps import Step
from node_agent.steps.link_state import find_link
from node_agent.steps.mark_file import MarkFile

from .links import (
    InterfaceName,
    LinkTarget,
    WayDown,
    find_link_target,
    first_entries,
    link_signs,
    losses,
    name_now,
)


class LinkDown(Fault):
    """The carrier of an interface is gone, as after a pulled cable or a switch port that died.

    With the carrier's own switch, where a driver has one, addresses and routes stay, as they do then. Otherwise
    the interface is set down: the kernel also forgets routes and IPv6 addresses, which come back in the end.
    """

    name: ClassVar[str] = "link_down"
    summary: ClassVar[str] = "a network interface loses its link"
    operator_sees: ClassVar[str] = (
        "'state DOWN' or NO-CARRIER in ip link, EHOSTUNREACH or ENETUNREACH, peers that time out"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"interface": "lan", "way": "down"})

    interface: InterfaceName = ""
    way: WayDown = "any"

    def locate(self, reader: Reader, facts: Facts) -> LinkTarget:
        return find_link_target(reader, self.interface)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, LinkTarget)
        return (MarkFile(name=tag, text=f"{target.name} has no link"), target.step(self.way))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, LinkTarget)
        return PlanNotes(
            backend="link", covers=("everything through the interface, both families", "what is stacked on it"),
            not_covered=("a daemon that manages the interface may set it up again",),
            warnings=(f"set down, it forgets {first_entries(target)}; they are put back",),
        )  # fmt: skip

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        assert target is None or isinstance(target, LinkTarget)
        return link_signs(target)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, LinkTarget)
        name = name_now(reader, target)
        link = find_link(reader.routing, target.members[0])
        if link is None:
            return Evidence(armed=False, hits=0, notes=(f"there is no {target.name} any more",))
        records, gap = reader.log.since(log_mark)
        notes = [f"{target.name} is called {name} now"] if name != target.name else []
        if link.up and link.carrier:
            notes.append("somebody has brought it up again")
        lost = losses(reader, name) - target.losses
        return Evidence(
            armed=not (link.up and link.carrier), hits=max(lost, 0), counters={"carrier_losses": max(lost, 0)},
            log=tuple(r.text for r in records if f"{name}: " in r.text and "ink" in r.text)[-5:], log_gap=gap > 0,
            notes=tuple(notes),
        )  # fmt: skip
