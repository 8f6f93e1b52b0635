"""What faults made of netfilter rules share: where their chains are, how packets vanish, far ends, evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import BaseModel, ConfigDict

from node_agent.errors import Refusal
from node_agent.fault import Evidence
from node_agent.guard import inet_guard
from node_agent.host import CommandError, Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.steps.nft_table import FAMILY, NftChain, NftSet, NftTable, has_table
from node_agent.traffic import find_peers

EARLY = -390
"""After fragments are put together, for only then a packet has ports (NF_IP_PRI_CONNTRACK_DEFRAG, -400), and
before raw (-300) and connection tracking (-200): nobody has decided by then, and what we drop is dropped."""

AFTER_NAT = -90
"""After the target of a packet was translated (NF_IP_PRI_NAT_DST, -100)."""

FIRST_QUEUE = 26470
_QUEUES = "/proc/net/netfilter/nfnetlink_queue"
_PROBE = "groundfault-probe-netfilter"
_REMEDY = "apt-get install nftables, and a kernel with nf_tables"


class FarEnds(BaseModel):
    """Networks of the far end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Of both families."""
        return (*self.v4, *self.v6)


def find_far_ends(reader: Reader, wanted: Sequence[str], field: str = "peers") -> FarEnds:
    """Addresses and networks as they are, names as this node resolves them, in both families.

    Raises :class:`Refusal` for a name that is not known, and for what is this node itself.
    """
    own = _own_addresses(reader) if wanted else set()
    found = find_peers(reader, wanted, field)
    for one in found:
        here = str(one.network_address)
        if one.network_address.is_loopback or (one.num_addresses == 1 and here in own):
            raise Refusal(f"{field}: {here} is this node itself", field=field, allowed="other machines")
    return FarEnds(
        v4=tuple(str(one) for one in found if one.version == 4),
        v6=tuple(str(one) for one in found if one.version == 6),
    )


def _own_addresses(reader: Reader) -> set[str]:
    text = reader.query(("ip", "-o", "addr", "show")) or ""
    return set(re.findall(r" inet6? ([0-9a-fA-F:.]+)/", text))


def free_queue(reader: Reader, count: int = 1) -> int:
    """The first of `count` numbers of packet queues nobody listens to, from :data:`FIRST_QUEUE` on."""
    taken = set()
    with suppress(OSError):
        taken = {int(line.split()[0]) for line in reader.read_text(_QUEUES).splitlines() if line.strip()}
    return next(n for n in range(FIRST_QUEUE, 65000) if not taken & set(range(n, n + count)))


def vanish(queue: int) -> str:
    """The verdict for packets this node sends: gone, and nobody is told.

    `drop` would make send() answer EPERM, which no network does. A queue that nobody listens to loses packets
    silently (nf_queue() in net/netfilter/nf_queue.c).
    """
    return f"queue num {queue}"


def far_end_sets(ends: FarEnds) -> tuple[NftSet, ...]:
    """The sets v4 and v6; one of a family that is not meant is empty."""
    return (
        NftSet(name="v4", of="ipv4_addr", elements=ends.v4, intervals=True),
        NftSet(name="v6", of="ipv6_addr", elements=ends.v6, intervals=True),
    )


def matching(way: str, counter: str, verdict: str) -> tuple[str, ...]:
    """Rules for packets whose `way` (saddr, daddr) is a far end, one a family."""
    families = (("ip", "v4"), ("ip6", "v6"))
    return tuple(f"{ip} {way} @{name} counter name {counter} {verdict}" for ip, name in families)


def spared(way: str, guard: tuple[int, ...]) -> tuple[str, ...]:
    """What every chain lets through first; `way` is iifname or oifname: how the chain knows loopback."""
    return (f'{way} "lo" accept', *inet_guard(guard))


def table_evidence(reader: Reader, tag: str, hits: Iterable[str]) -> Evidence:
    """Armed while the table is there; hits are the packets of those counters."""
    there = has_table(reader, tag)
    counters = {name: packets for name, (packets, _) in reader.network.rule_counters(FAMILY, tag).items()}
    notes = () if there else (f"the netfilter table {FAMILY} {tag} is gone: somebody has flushed the ruleset",)
    return Evidence(armed=there, hits=sum(counters.get(name, 0) for name in hits), counters=counters, notes=notes)


@capability("netfilter.tables", remedy=_REMEDY)
def probe_tables(host: Host) -> None:
    """A table with sets, timeouts, counters and answers by reset can be made, and its lease renewed."""
    rules = ("tcp dport 9 counter name hits reject with tcp reset",)
    chains = (
        NftChain(name="in", hook="prerouting", priority=EARLY, rules=rules),
        NftChain(name="out", hook="output", priority=EARLY, rules=rules),
    )
    _try(host, NftTable(name=_PROBE, title="a probe", counters=("hits",), chains=chains))


@capability("netfilter.queue", remedy="a kernel with the modules nft_queue and nfnetlink_queue")
def probe_queue(host: Host) -> None:
    """Packets can be given to a queue."""
    rules = ("udp dport 9 udp sport 9 queue flags bypass num 64999",)
    _try(host, NftTable(name=_PROBE, title="a probe", chains=(
        NftChain(name="out", hook="output", priority=EARLY, rules=rules),
    )))  # fmt: skip


@capability("netfilter.conntrack", remedy="a kernel with the modules nf_conntrack and nf_conntrack_netlink")
def probe_conntrack(host: Host) -> None:
    """Connections can be tracked, and left out of it."""
    rules = ("tcp dport 9 notrack",)
    chains = (
        NftChain(name="raw", hook="output", priority=EARLY, rules=rules),
        NftChain(name="tracking", hook="output", priority=0, rules=("ct state new counter",)),
    )
    _try(host, NftTable(name=_PROBE, title="a probe", chains=chains))
    try:
        host.flows.fillers()
    except OSError as error:
        raise Lacking(f"the connection table cannot be read: {error}") from error


def _try(host: Host, table: NftTable) -> None:
    try:
        table.apply(host)
        table.hold(host, host.boottime() + 5)
    except CommandError as error:
        raise Lacking(error.stderr.strip().partition("\n")[0] or str(error)) from error
    finally:
        table.revert(host, None)
