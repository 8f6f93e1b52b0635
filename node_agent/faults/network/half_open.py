"""half_open: established TCP connections die silently, new ones work. Netfilter rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.nft_flows import flow_sets
from node_agent.steps.nft_table import NftChain, NftTable

from .connections import ConnectionFields, Connections, find_connections, of_known
from .netfilter import EARLY, spared, table_evidence, vanish

_HITS = ("out", "in")


class HalfOpen(ConnectionFields, Fault):
    """The packets of the connections that are established at that moment vanish, both ways, and nobody is told.

    As when a stateful firewall has forgotten them, or the other machine was replaced. A connection that begins
    later works.
    """

    name: ClassVar[str] = "half_open"
    summary: ClassVar[str] = "established TCP connections die silently while new ones work"
    operator_sees: ClassVar[str] = (
        "requests on pooled connections hang until a time-out of the program or of TCP (15 minutes and more); ss "
        "shows ESTAB and a growing Send-Q; a restart of the program heals it"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"ports": "5432"}, {"peers": ["10.77.0.3"]})

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("netfilter.tables", "netfilter.queue")

    def locate(self, reader: Reader, facts: Facts) -> Connections:
        return find_connections(reader, facts, self, needed=True)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Connections)
        sent = (*spared("oifname", target.guard), *of_known("out", vanish(target.queue)))
        received = (*spared("iifname", target.guard), *of_known("in", "drop"))
        table = NftTable(
            name=tag, title=f"lose packets of {target.describe()}", counters=_HITS, sets=flow_sets(),
            chains=(
                NftChain(name="sent", hook="output", priority=EARLY, rules=sent),
                NftChain(name="received", hook="prerouting", priority=EARLY, rules=received),
            ),
        )  # fmt: skip
        return (table, target.step(tag, provoke=False, needed=True))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, Connections)
        return PlanNotes(
            backend="netfilter",
            covers=("TCP connections of this node's sockets that are established now, IPv4 and IPv6",),
            not_covered=(
                "connections of containers with a network of their own, and forwarded ones",
                f"connections within the node, and TCP ports {', '.join(map(str, target.guard))}",
            ),
            warnings=("a connection that outlives the injection goes on where it was",),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return table_evidence(reader, tag, _HITS)
