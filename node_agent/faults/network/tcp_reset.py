"""tcp_reset: TCP connections are reset, at both ends. Netfilter rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.host.flows import PROVOKED_BY
from node_agent.steps import Step
from node_agent.steps.nft_flows import flow_sets
from node_agent.steps.nft_table import NftChain, NftSet, NftTable

from .connections import ConnectionFields, Connections, find_connections, of_known
from .netfilter import EARLY, far_end_sets, spared, table_evidence

_HITS = ("own_end", "far_end")
_RESET = "reject with tcp reset"


class TcpReset(ConnectionFields, Fault):
    """Each packet of the connections is answered with a reset and goes no further.

    The connections are those that are established at that moment, also idle ones: a segment that means nothing is
    sent both ways, and its answer is what the reset answers. Both ends get ECONNRESET.
    """

    name: ClassVar[str] = "tcp_reset"
    summary: ClassVar[str] = "established TCP connections are reset at both ends"
    operator_sees: ClassVar[str] = (
        "'Connection reset by peer' on both sides at once, and neither program has closed anything; new "
        "connections work, unless they are reset, too"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"ports": "5432"},
        {"peers": ["10.77.0.3"], "new_connections": True},
    )

    new_connections: bool = Field(
        default=False, description="connections that begin while it stands are reset, too"
    )

    @model_validator(mode="after")
    def _new_ones_are_nobodys(self) -> TcpReset:
        if self.new_connections and self.unit:
            raise ValueError("new_connections does not go with unit: name peers or ports")
        return self

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("netfilter.tables")

    def locate(self, reader: Reader, facts: Facts) -> Connections:
        return find_connections(reader, facts, self, needed=not self.new_connections)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Connections)
        table = NftTable(
            name=tag, title=f"reset {target.describe()}", counters=_HITS, sets=self._sets(target),
            chains=(
                NftChain(name="sent", hook="output", priority=EARLY,
                         rules=self._rules(target, "oifname", "daddr", "own_end")),
                NftChain(name="received", hook="prerouting", priority=EARLY,
                         rules=self._rules(target, "iifname", "saddr", "far_end")),
            ),
        )  # fmt: skip
        return (table, target.step(tag, provoke=True, needed=not self.new_connections))

    def _sets(self, target: Connections) -> tuple[NftSet, ...]:
        ports = tuple(f"{a}-{b}" if a != b else str(a) for a, b in target.ports)
        return (
            *flow_sets(), *far_end_sets(target.ends),
            NftSet(name="ports", of="inet_service", elements=ports, intervals=True),
        )  # fmt: skip

    def _rules(self, target: Connections, device: str, way: str, counter: str) -> tuple[str, ...]:
        first = (
            f"tcp urgptr {PROVOKED_BY} accept",
            *spared(device, target.guard),
            "tcp flags & rst == rst accept",
        )
        return (
            *first,
            *of_known(counter, _RESET),
            *(self._any(target, way, counter) if self.new_connections else ()),
        )

    def _any(self, target: Connections, way: str, counter: str) -> tuple[str, ...]:
        """Rules for all that the parameters name, whenever it began."""
        ends = [f"{ip} {way} @{name}" for ip, name, some in
                (("ip", "v4", target.ends.v4), ("ip6", "v6", target.ends.v6)) if some]  # fmt: skip
        ports = ["tcp dport @ports", "tcp sport @ports"] if target.ports else ["meta l4proto tcp"]
        return tuple(
            f"{end} {port} counter name {counter} {_RESET}".strip() for end in ends or [""] for port in ports
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Connections)
        return PlanNotes(
            backend="netfilter",
            covers=(
                "TCP connections of this node's sockets, IPv4 and IPv6, idle ones too: ECONNRESET at both ends",
            ),
            not_covered=(
                "connections of containers with a network of their own, and forwarded ones"
                + (", unless their packets pass while new ones are reset" if self.new_connections else ""),
                f"connections within the node, and TCP ports {', '.join(map(str, target.guard))}",
                "the far end where a firewall between drops what fits no window: it learns of it when it sends",
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return table_evidence(reader, tag, _HITS)
