"""bandwidth_limit: a link that carries less than it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Target
from node_agent.shape import Shape
from node_agent.signs import Sign

from .shaping import SNMP, ShapedFault


class BandwidthLimit(ShapedFault):
    """The selected traffic of each direction shares so many kbit/s (1000 bits a second, link headers included).

    What is too much waits in a queue, and is lost when that is full: a long queue makes a slow link, a short one
    a lossy link. `burst_kib` may pass at once after a pause.
    """

    name: ClassVar[str] = "bandwidth_limit"
    summary: ClassVar[str] = "a link carries less than it should"
    operator_sees: ClassVar[str] = (
        "transfers slow down to the rate, round trips grow by the time in the queue while they run, then segments "
        "are sent again; small requests alone are as fast as ever"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"rate_kbit": 2000, "direction": "out"},
        {"rate_kbit": 10000, "burst_kib": 64, "queue_kib": 256, "peers": ("10.77.0.1",), "ports": "5432"},
    )

    rate_kbit: int = Field(default=1000, ge=8, le=100_000_000, description="what passes in a second, in kbit/s")
    burst_kib: int = Field(
        default=0, ge=0, le=2**20, description="what passes at once, in KiB; 0: as the rate needs"
    )
    queue_kib: int = Field(
        default=0, ge=0, le=2**20, description="what may wait, in KiB; 0: a quarter of a second at that rate"
    )

    def shape(self) -> Shape:
        return Shape(
            rate_kbit=self.rate_kbit, burst_bytes=self.burst_kib << 10, queue_bytes=self.queue_kib << 10
        )  # fmt: skip

    def backend(self) -> str:
        return "tbf of a lane (nftables, ifb)"

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return self.tcp_signs((SNMP, "Tcp RetransSegs", "TCP segments sent again"))
