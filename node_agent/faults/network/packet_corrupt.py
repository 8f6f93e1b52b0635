"""packet_corrupt: some packets arrive with a wrong bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Facts, Missing, Target
from node_agent.lanes import LaneCounters
from node_agent.shape import Shape
from node_agent.signs import Sign

from .chances import chance_for
from .shaping import SNMP, Correlation, ShapedFault, Share, expected


class PacketCorrupt(ShapedFault):
    """One bit of so many per cent of the packets is flipped, anywhere from the Ethernet header to the last byte.

    Checksums of TCP, UDP and ICMP are made before and verified after, also of what comes in, where card or kernel
    had verified them already: to programs it is a loss. Data arrive wrong only where there is no checksum: UDP
    over IPv4 that was sent without one, and raw IP.
    """

    name: ClassVar[str] = "packet_corrupt"
    summary: ClassVar[str] = "some packets arrive with a wrong bit; mostly seen as loss"
    operator_sees: ClassVar[str] = (
        "checksum errors at the receiver (InCsumErrors of Tcp, Udp and Icmp, InHdrErrors of Ip, nstat), segments "
        "sent again at the sender; the counters of the interface stay at 0"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"corrupt_percent": 5, "direction": "in"},
        {"corrupt_percent": 20, "protocol": "udp", "ports": "53", "peers": ("10.77.0.1",)},
    )
    not_covered: ClassVar[tuple[str, ...]] = (
        "what has a checksum: the receiver drops it, so TCP and UDP lose packets and deliver none wrong",
    )

    corrupt_percent: Share = Field(default=5, description="share of the packets with a flipped bit, in percent")
    correlation_percent: Correlation = 0

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return (*super().requires(facts), *facts.missing("net.csum"))

    def shape(self) -> Shape:
        return Shape(
            corrupt_percent=chance_for(self.corrupt_percent, self.correlation_percent),
            corrupt_correlation_percent=self.correlation_percent,
            seed=self.seed,
        )

    def hits(self, counted: LaneCounters) -> int:
        return expected(counted, self.corrupt_percent)

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        out = (SNMP, "Tcp RetransSegs", "TCP segments sent again")
        back = (SNMP, "Tcp InCsumErrors", "TCP segments whose checksum was wrong")
        return self.tcp_signs(*{"out": (out,), "in": (back,), "both": (out, back)}[self.direction])
