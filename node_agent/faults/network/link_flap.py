"""link_flap: the link of an interface goes and comes, again and again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

import node_agent
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.flapping import Flapping
from node_agent.host import Reader
from node_agent.signs import Sign
from node_agent.steps import Step
from node_agent.steps.helper_process import HelperProcess
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


class LinkFlap(Fault):
    """An interface loses its link for a while, gets it back for a while, and so on, as with a bad cable or optics.

    A process of the agent's switches it, and gives the interface what the kernel has forgotten each time it is up
    again. When the agent is killed it is killed too, and the next agent brings the interface up.
    """

    name: ClassVar[str] = "link_flap"
    summary: ClassVar[str] = "the link of a network interface goes and comes again and again"
    operator_sees: ClassVar[str] = (
        "carrier_changes that rise, connections that stall and go on, cluster members that leave and join"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"down_s": 1, "up_s": 4}, {"jitter_percent": 30})

    interface: InterfaceName = ""
    way: WayDown = "any"
    down_s: float = Field(default=2.0, ge=0.2, le=600, description="how long it is down each time, in seconds")
    up_s: float = Field(default=8.0, ge=0.2, le=600, description="how long it is up in between, in seconds")
    jitter_percent: int = Field(
        default=0, ge=0, le=90, description="each of those times is up to so much longer or shorter"
    )

    def locate(self, reader: Reader, facts: Facts) -> LinkTarget:
        return find_link_target(reader, self.interface)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, LinkTarget)
        upkeep = target.step(self.way, leave_up=True)
        wanted = Flapping(
            state=upkeep, down_s=self.down_s, up_s=self.up_s, jitter_percent=self.jitter_percent, seed=self.seed
        )
        script = Path(node_agent.__file__).with_name("flapper.py")
        helper = HelperProcess(
            name=tag, title=f"take the link of {target.name} for {self.down_s:g} s, every {self.up_s:g} s",
            argv=(sys.executable, str(script)), payload=wanted.model_dump_json(), ready_s=60,
        )  # fmt: skip
        return (MarkFile(name=tag, text=f"the link of {target.name} flaps"), upkeep, helper)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, LinkTarget)
        share = self.down_s / (self.down_s + self.up_s)
        return PlanNotes(
            backend="link", covers=(f"everything through {target.name}, {share:.0%} of the time",),
            not_covered=("the first second after it is up: addresses are checked (IPv6) and neighbours found",),
            warnings=(f"set down, it forgets {first_entries(target)}; they are put back each time",),
        )  # fmt: skip

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        assert target is None or isinstance(target, LinkTarget)
        return link_signs(target)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, LinkTarget)
        name = name_now(reader, target)
        running = bool(reader.helpers.pids(tag))
        lost = max(losses(reader, name) - target.losses, 0) if name else 0
        notes = [] if name else [f"there is no {target.name} any more"]
        if not running:
            notes.append(f"what switches it has ended: {reader.helpers.complaint(tag)[-200:]}")
        return Evidence(
            armed=running and bool(name), hits=lost, counters={"carrier_losses": lost}, notes=tuple(notes)
        )
