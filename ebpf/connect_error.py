"""connect_error: making connections to an address, or serving at a port, answers an errno."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ebpf.placing import RuleFault, place
from node_agent.errnos import ErrnoName
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.rules import Match


class ConnectError(RuleFault, Fault):
    """connect, bind, listen, accept, send or recv answers an errno, by remote address and port.

    For bind, listen and accept the port is the local one. IPv4 addresses written as IPv6 (::ffff:…) are IPv6 here.
    """

    name: ClassVar[str] = "connect_error"
    summary: ClassVar[str] = "connecting to an address and port answers an errno, for one unit or process"
    operator_sees: ClassVar[str] = (
        "connections are refused at once for one program while others on the same machine reach the same service; "
        "no packet leaves, so a capture shows nothing"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron", "address": "10.77.0.3", "port": 5432},
        {"cgroup": "/work", "operation": "bind", "errno": "EADDRINUSE"},
        {"cgroup": "/work", "operation": "send", "errno": "ECONNRESET", "schedule": "probability:0.1"},
    )

    operation: Literal["connect", "bind", "listen", "accept", "send", "recv"] = Field(
        default="connect", description="what fails"
    )
    errno: ErrnoName = Field(default="ECONNREFUSED", description="what it answers")
    address: str = Field(default="", description="only this remote address or network (10.0.0.0/8, 2001:db8::/32)")
    port: int = Field(default=0, ge=0, le=65535, description="only this port; 0: any")
    min_size_bytes: int = Field(default=0, ge=0, lt=2**40, description="send and recv: only from this size on")

    @field_validator("address")
    @classmethod
    def _network(cls, value: str) -> str:
        if value:
            ipaddress.ip_network(value)
        return value

    backend: Literal["auto", "security", "sockets"] = Field(
        default="auto", description="security: hooks of security modules; sockets: those of control groups"
    )

    def locate(self, reader: Reader, facts: Facts) -> Target:
        match = Match(
            address=self.address, port=self.port or None,
            min_size=self.min_size_bytes,
        )  # fmt: skip
        to = f" to {self.address or 'any address'}:{self.port or '*'}"
        return place(
            reader, facts, operations=(self.operation,), fault=self, seed=self.seed, match=match,
            what=f"{self.operation}{to} answers {self.errno}", errno=self.errno, only=self.backend,
        )  # fmt: skip
