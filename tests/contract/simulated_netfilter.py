"""The netfilter ruleset of the simulated machine, and the connections it has. A reboot empties both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node_agent.host import CommandError
from node_agent.workers.socket_diag import Connection
from tests.contract.simulated_network import edit

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

_TABLE = re.compile(r"^(?:add )?table (\w+) (\S+)(?: \{)?$")
_GONE = re.compile(r"^(?:delete|destroy) table (\w+) (\S+)$")
_OTHER = re.compile(r"^\w+ \w+ (\w+) (\S+)")
_COUNTER = re.compile(r"^\s*counter (\S+) \{")


def texts() -> dict[str, str]:
    """What /proc says of ports."""
    return {"/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n"}


@dataclass
class SimNetfilter:
    """Tables by family and name, each as the lines that made it; and what the kernel knows of connections."""

    tables: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    connections: list[Connection] = field(
        default_factory=lambda: [Connection("10.77.0.2", 41000, "10.77.0.3", 5432, 77)]
    )
    provoked: list[Connection] = field(default_factory=list)
    filled: int = 0


class SimulatedRuleset:
    """What `host.network` does with netfilter. A script is one change, as it is one transaction."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def text(self) -> str:
        self._h.alive()
        tables = self._h.kernel.netfilter.tables
        return "".join(f"table {f} {n} {{\n" + "\n".join(lines) + "\n}\n" for (f, n), lines in tables.items())

    def load(self, script: str) -> None:
        self._h.change()
        tables = self._h.kernel.netfilter.tables
        within: list[str] | None = None
        for line in script.splitlines():
            if within is not None:
                if line == "}":
                    within = None
                else:
                    within.append(line)
            elif made := _TABLE.match(line):
                lines = tables.setdefault((made[1], made[2]), [])
                within = lines if line.endswith("{") else None
            elif gone := _GONE.match(line):
                if tables.pop((gone[1], gone[2]), None) is None:
                    raise CommandError(("nft", "-f", "-"), 1, f"{line}: No such file or directory")
            elif edit(self._h, line):
                continue
            elif (other := _OTHER.match(line)) and (other[1], other[2]) not in tables:
                raise CommandError(("nft", "-f", "-"), 1, f"{line}: No such file or directory")

    def counters(self, family: str, table: str) -> Mapping[str, tuple[int, int]]:
        self._h.alive()
        lines = self._h.kernel.netfilter.tables.get((family, table), [])
        return {found[1]: (0, 0) for line in lines if (found := _COUNTER.match(line))}


class SimulatedFlows:
    """`host.flows` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def connections(self) -> Sequence[Connection]:
        self._h.alive()
        return list(self._h.kernel.netfilter.connections)

    def provoke(self, connections: Sequence[Connection]) -> None:
        self._h.change()
        self._h.kernel.netfilter.provoked += connections

    def fillers(self) -> int:
        self._h.alive()
        return self._h.kernel.netfilter.filled

    def clear_fillers(self) -> None:
        self._h.change()
        self._h.kernel.netfilter.filled = 0
