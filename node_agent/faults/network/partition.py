"""partition: this node and some others cannot reach each other. Netfilter rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.guard import guarded_ports
from node_agent.host import Reader
from node_agent.steps import Step
from node_agent.steps.nft_table import NftChain, NftTable

from .netfilter import (
    AFTER_NAT,
    EARLY,
    FarEnds,
    far_end_sets,
    find_far_ends,
    free_queue,
    matching,
    spared,
    table_evidence,
    vanish,
)

_HITS = ("out", "in")
_REJECT = "admin-prohibited"
_FLOWTABLE = re.compile(r"flowtable \S+ \{[^}]*?devices = \{([^}]*)\}")


class CutOff(Target):
    """Who is cut off from this node. `fast` are devices whose packets pass by the usual hooks (flow offload)."""

    ends: FarEnds
    guard: tuple[int, ...]
    queue: int
    direction: str
    fast: tuple[str, ...]

    def describe(self) -> str:
        way = {"out": "to", "in": "from", "both": "to and from"}[self.direction]
        return f"packets {way} {', '.join(self.ends.all)}"


class Partition(Fault):
    """Packets to or from some far ends end here: its own and those it forwards, new and old connections."""

    name: ClassVar[str] = "partition"
    summary: ClassVar[str] = "this node and some others cannot reach each other"
    operator_sees: ClassVar[str] = (
        "connections to some machines hang and new ones time out, while those machines are up and reach others; "
        "ARP still answers, ping does not"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"peers": ["10.77.0.3"]},
        {"peers": ["10.77.0.0/24", "fd00::/64"], "direction": "in", "action": "reject"},
    )

    peers: tuple[str, ...] = Field(
        min_length=1, max_length=4096, description="far ends: names, addresses or networks (CIDR), IPv4 and IPv6"
    )
    direction: Literal["out", "in", "both"] = Field(
        default="both", description="out: packets to them; in: packets from them"
    )
    action: Literal["drop", "reject"] = Field(
        default="drop", description="drop: they vanish; reject: the sender is told, TCP by a reset"
    )

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("netfilter.tables", *(("netfilter.queue",) if self.action == "drop" else ()))

    def locate(self, reader: Reader, facts: Facts) -> CutOff:
        listed = ",".join(_FLOWTABLE.findall(reader.network.ruleset()))
        fast = tuple(dict.fromkeys(re.findall(r'[^\s,"]+', listed)))
        return CutOff(
            ends=find_far_ends(reader, self.peers), guard=guarded_ports(reader), queue=free_queue(reader),
            direction=self.direction, fast=fast,
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, CutOff)
        chains = (
            *(self._outgoing(target) if self.direction != "in" else ()),
            *(self._incoming(target) if self.direction != "out" else ()),
            *self._offloaded(target),
        )
        table = NftTable(
            name=tag, title=f"{target.describe()}: {self.action}", counters=_HITS, sets=far_end_sets(target.ends),
            chains=chains,
        )  # fmt: skip
        return (table,)

    def _outgoing(self, target: CutOff) -> tuple[NftChain, ...]:
        """What this node sends, before and after its target is translated, and what it forwards."""
        told: tuple[str, ...] = ()
        sent = matching("daddr", "out", vanish(target.queue))
        forwarded = matching("daddr", "out", "drop")
        if self.action == "reject":
            sent = forwarded = _rejecting("daddr", "out")
            told = (  # what tells the other end so must get out
                "tcp flags & rst == rst accept",
                f"icmp type destination-unreachable icmp code {_REJECT} accept",
                f"icmpv6 type destination-unreachable icmpv6 code {_REJECT} accept",
            )
        first = (*spared("oifname", target.guard), *told)
        return (
            NftChain(name="sent", hook="output", priority=EARLY, rules=(*first, *sent)),
            NftChain(name="translated", hook="output", priority=AFTER_NAT, rules=(*first, *sent)),
            NftChain(
                name="forwarded", hook="forward", priority=EARLY,
                rules=(*spared("oifname", target.guard), *forwarded),
            ),
        )  # fmt: skip

    def _incoming(self, target: CutOff) -> tuple[NftChain, ...]:
        rules = _rejecting("saddr", "in") if self.action == "reject" else matching("saddr", "in", "drop")
        first = spared("iifname", target.guard)
        return (NftChain(name="received", hook="prerouting", priority=EARLY, rules=(*first, *rules)),)

    def _offloaded(self, target: CutOff) -> tuple[NftChain, ...]:
        """Packets of offloaded flows are forwarded at the hook ingress (flowtables), before all other hooks."""
        rules = (*spared("iifname", target.guard),)
        rules += matching("daddr", "out", "drop") if self.direction != "in" else ()
        rules += matching("saddr", "in", "drop") if self.direction != "out" else ()
        return tuple(
            NftChain(name=f"offloaded{n}", hook="ingress", priority=EARLY, device=device, rules=rules)
            for n, device in enumerate(target.fast)
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, CutOff)
        return PlanNotes(
            backend="netfilter",
            covers=(
                "IPv4 and IPv6, new and old connections, forwarded packets, translated addresses",
                "the kernel ends it with the lease, whatever becomes of the agent",
            ),
            not_covered=(
                "frames that pass a bridge, macvlan or XDP without coming to the network layer",
                f"TCP ports {', '.join(map(str, target.guard))} (sshd and the agent), neighbour discovery, DHCP",
            ),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return table_evidence(reader, tag, _HITS)


def _rejecting(way: str, counter: str) -> tuple[str, ...]:
    tcp = (f"meta l4proto tcp {rule}" for rule in matching(way, counter, "reject with tcp reset"))
    return (*tcp, *matching(way, counter, f"reject with icmpx type {_REJECT}"))
