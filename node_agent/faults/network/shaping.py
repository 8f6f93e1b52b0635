"""What faults that shape traffic share: their target, step, notes and evidence."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.lanes import LaneCounters, is_armed, lane_counters, refuse_unmergeable
from node_agent.shape import MAX_DELAY_MS, Shape
from node_agent.signs import Sign, named
from node_agent.steps import Step
from node_agent.steps.shape_traffic import ShapeTraffic
from node_agent.traffic import Selection, TrafficFields, find_traffic

SNMP, NETSTAT = "/proc/net/snmp", "/proc/net/netstat"

Share = Annotated[float, Field(gt=0, le=100)]
"""A share of the packets, in percent; none at all would be no fault."""

Correlation = Annotated[
    float,
    Field(ge=0, le=95, description="how much each packet's lot resembles that of the one before, in percent"),
]
DelayMs = Annotated[float, Field(ge=0, le=MAX_DELAY_MS)]

GUARDED = "TCP of sshd and of the agent, address resolution, DHCP: always let through"


class ShapedTraffic(Target):
    """Some of the traffic of an interface."""

    selection: Selection

    def describe(self) -> str:
        return self.selection.describe()


class ShapedFault(TrafficFields, Fault):
    """Base of the faults that do something to packets. Subclasses say which shape, and what counts as a hit."""

    covers: ClassVar[tuple[str, ...]] = ()
    not_covered: ClassVar[tuple[str, ...]] = ()

    def shape(self) -> Shape:
        """What happens to each packet. Pure."""
        raise NotImplementedError

    def hits(self, counted: LaneCounters) -> int:
        """How often it has bitten; every packet it was meant for, unless there is something better to go by."""
        return counted.matched

    def backend(self) -> str:
        return "netem of a lane (nftables, ifb)"

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("net.ifb", "net.netem", "net.nft_fwd")

    def locate(self, reader: Reader, facts: Facts) -> ShapedTraffic:
        selection = find_traffic(reader, facts, self)
        refuse_unmergeable(reader, selection, self.shape())
        return ShapedTraffic(selection=selection)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, ShapedTraffic)
        return (ShapeTraffic(tag=tag, selection=target.selection, shape=self.shape()),)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, ShapedTraffic)
        v4, v6 = bool(target.selection.v4), bool(target.selection.v6)
        families = "IPv4 and IPv6" if v4 == v6 else "IPv4" if v4 else "IPv6"
        known = [GUARDED]
        if target.selection.cgroups:
            known.append("what the unit receives: packets have no owner yet where they come in")
        return PlanNotes(
            backend=self.backend(),
            covers=(f"packets of {families}, of connections old and new", *self.covers),
            not_covered=(*known, *self.not_covered),
        )

    def tcp_signs(self, *wanted: tuple[str, str, str]) -> tuple[Sign, ...]:
        """Counters of TCP (file, name, what), where TCP is among what is shaped."""
        if self.protocol not in ("any", "tcp"):
            return ()
        return tuple(named(what, path, name, "once there is TCP traffic") for path, name, what in wanted)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        counted = lane_counters(reader, tag)
        counters = {"matched": counted.matched, "dropped": counted.dropped, "waiting": counted.waiting,
                    "sent": counted.sent}  # fmt: skip
        return Evidence(armed=is_armed(reader, tag), hits=self.hits(counted), counters=counters)


def expected(counted: LaneCounters, percent: float) -> int:
    """Of a share of the packets, how many that should be by now: for what no counter of the kernel tells.

    `matched` counts what the stack hands over, large segments as one; the lane counts what becomes of them.
    """
    packets = counted.sent + counted.dropped + counted.waiting
    return int(max(counted.matched, packets) * percent / 100)
