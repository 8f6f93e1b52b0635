"""ports_exhausted: no local port is left for connections, to one address and port or to any. Real sockets."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

import node_agent
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.helper_process import Claim, HelperProcess

_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_SOCKET_BYTES = 3072
"""What a socket takes of the kernel's memory, with its file and its descriptor, rounded up."""
_READY_S = 110


class PortRange(Target):
    """The range, and towards whom."""

    first: int
    last: int
    where: str

    def describe(self) -> str:
        return f"local ports {self.first}-{self.last} for connections to {self.where}"


class PortsExhausted(Fault):
    """Every port that the kernel gives by itself is taken: connect answers EADDRNOTAVAIL.

    Towards one address and port, connections to elsewhere are fine: a port can be used once for each far end.
    Without an address no connection gets a port, and no program one by bind.
    """

    name: ClassVar[str] = "ports_exhausted"
    summary: ClassVar[str] = "no local port is left for new connections"
    operator_sees: ClassVar[str] = (
        "connect() fails with EADDRNOTAVAIL, 'Cannot assign requested address' (99), at once; nginx answers 502; "
        "ss shows as many connections to one upstream as ip_local_port_range has ports"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"address": "10.77.0.3", "port": 5432}, {})

    address: str = Field(default="", description="towards this address only, IPv4 or IPv6; none: towards all")
    port: int = Field(default=0, ge=0, le=65535, description="and this port")
    leave: int = Field(default=0, ge=0, le=65535, description="ports that are left; they are not taken later")

    @field_validator("address")
    @classmethod
    def _an_address(cls, value: str) -> str:
        return str(ipaddress.ip_address(value)) if value else value

    @model_validator(mode="after")
    def _both_or_none(self) -> PortsExhausted:
        if bool(self.address) != bool(self.port):
            raise ValueError("address and port go together")
        return self

    def locate(self, reader: Reader, facts: Facts) -> PortRange:
        first, last = (int(word) for word in reader.read_text(_RANGE).split())
        needed_mib = (last - first + 1) * _SOCKET_BYTES >> 20
        if needed_mib > facts.memory_mib // 4:
            raise Refusal(
                f"port: taking ports {first} to {last} needs {needed_mib} MiB of the kernel's memory",
                field="port", allowed="a node with a smaller ip_local_port_range, or more memory",
            )  # fmt: skip
        if self.leave > last - first:
            raise Refusal(f"leave: the range has {last - first + 1} ports", field="leave", allowed="fewer")
        where = f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
        return PortRange(first=first, last=last, where=where if self.address else "everybody")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return ()

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, PortRange)
        script = Path(node_agent.__file__).parent / "workers" / "ports_worker.py"
        worker = HelperProcess(
            name=tag, title=f"take {target.describe()}", argv=(sys.executable, "-I", "-S", str(script)),
            payload=json.dumps({"address": self.address, "port": self.port, "leave": self.leave}),
            ready_s=_READY_S,
            claims=(Claim(kind="value", name=f"local ports for connections to {target.where}"),),
        )  # fmt: skip
        return (worker,)

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        left_out = ["connections from another address of this node, and from containers with their own network"]
        if not self.address:
            left_out = [
                "ports of connections that others have now: the kernel gives them again towards other far ends",
                "UDP, and containers with a network of their own",
            ]
        return PlanNotes(
            backend="sockets",
            covers=(
                "connections whose port the kernel chooses; the sockets are real: ss shows them",
                "no packet leaves for them, and none of them is in TIME_WAIT afterwards",
            ),
            not_covered=tuple(left_out),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        if not reader.helpers.pids(tag):
            return Evidence(armed=False, hits=0, notes=("the process that holds the ports has ended",))
        counters = dict(json.loads(reader.helpers.ask(tag, "report"))["counters"])
        refused = counters.get("refused", 0)
        note = "hits are connections of the holder's own that got no port; the kernel counts no others'"
        return Evidence(armed=counters.get("held", 1) > 0, hits=refused, counters=counters, notes=(note,))
