"""The netfilter rules that lead packets to lanes, in nft's own words, and what is measured of them. Pure.

One table of family netdev for each interface, with a chain for each direction. Its chains come after those of
others, which therefore see every packet first. The rule list begins with what is let through always. `fwd` hands a
packet to the lane, and ends the rules for it. Sources: nft(8), net/netfilter/nft_fwd_netdev.c, drivers/net/ifb.c.

What control group a packet is from is known in the output hook only, where it is told to the chain by the packet's
priority; the chain puts that back to 0 before the packet goes on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from node_agent.guard import netdev_guard
from node_agent.lanes.boxes import Box, Ports, below
from node_agent.traffic import Network

PRIORITY = 500
_MAJOR = 0x6F66
"""Of the priorities that mark packets of control groups; no qdisc of anybody should have this handle."""
_NAME = re.compile(r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$")
_FORWARD = re.compile(r'fwd to "?([^"\s]+)"?')
_PLAN = re.compile(r'comment "plan ([0-9a-f]+)"')

Way = tuple[str, tuple[str, ...], tuple[Box, ...]]
"""A lane's name, the marks of its injections, and which packets go to it."""


@dataclass(frozen=True)
class Chain:
    """A base chain: its name is the direction, `head` what it hangs on, and its rules in order."""

    name: Literal["out", "in"]
    head: str
    rules: tuple[str, ...]


def table_of(interface: str) -> str:
    """The name of the table of an interface."""
    plain = _NAME.match(interface) is not None
    return f"groundfault.{interface if plain else hashlib.sha256(interface.encode()).hexdigest()[:12]}"


def chain_rules(
    interface: str, direction: Literal["out", "in"], guard: tuple[int, ...], ways: Iterable[Way],
    paths: Sequence[str],
) -> Chain:  # fmt: skip
    """The chain of a direction: what is let through, then the ways to the lanes, as ordered."""
    hook = "egress" if direction == "out" else "ingress"
    head = f'type filter hook {hook} device "{interface}" priority {PRIORITY}; policy accept;'
    rules = []
    for lane, tags, boxes in ways:
        counters = " ".join(f'counter name "{tag}"' for tag in tags)
        for box in boxes:
            for match in matches(box, direction, paths):
                rules.append(" ".join(part for part in (match, counters, f'fwd to "{lane}"') if part))
    digest = hashlib.sha256("\n".join((head, *map(str, guard), *rules)).encode()).hexdigest()[:12]
    return Chain(direction, head, (*netdev_guard(guard, f"plan {digest}"), *rules))


def matches(box: Box, direction: Literal["out", "in"], paths: Sequence[str]) -> Iterator[str]:
    """The conditions under which a packet is in a box; where there are several, one of them is enough."""
    way = "daddr" if direction == "out" else "saddr"
    families = ("ip", "ip6") if box.far is not None else ("",)
    for family in families:
        parts = []
        if box.groups is not None:
            numbers = [n for n, path in enumerate(paths, 1) if any(below(path, g) for g in box.groups)]
            parts.append(f"meta priority {_listed(f'{_MAJOR:x}:{n:x}' for n in numbers)}")
        if family:
            version = 4 if family == "ip" else 6
            nets = [net for net in box.far or () if net.version == version]
            if not nets:
                continue
            whole = any(net.prefixlen == 0 for net in nets)
            parts.append(f"meta protocol {family}" if whole else f"{family} {way} {_listed(map(_net, nets))}")
        parts += _transport(box, family)
        if box.groups is not None:
            parts.append("meta priority set none")
        yield " ".join(parts)


def _transport(box: Box, family: str) -> Iterator[str]:
    ends = [(name, ports) for name, ports in (("sport", box.sport), ("dport", box.dport)) if ports is not None]
    if box.protocol == "icmp":
        kinds = {"ip": ("icmp",), "ip6": ("ipv6-icmp",)}.get(family, ("icmp", "ipv6-icmp"))
        yield f"meta l4proto {_listed(kinds)}"
    elif box.protocol == "ported":
        yield "meta l4proto { tcp, udp }"
        yield from (f"th {name} {_listed(_ranges(ports))}" for name, ports in ends)
    elif box.protocol in ("tcp", "udp"):
        if not ends:
            yield f"meta l4proto {box.protocol}"
        yield from (f"{box.protocol} {name} {_listed(_ranges(ports))}" for name, ports in ends)


def _ranges(ports: Ports) -> Iterator[str]:
    return (str(first) if first == last else f"{first}-{last}" for first, last in ports)


def _net(net: Network) -> str:
    return str(net.network_address) if net.prefixlen == net.max_prefixlen else str(net)


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    return found[0] if len(found) == 1 else f"{{ {', '.join(found)} }}"


def mark_rules(interface: str, paths: Sequence[str], groups: Mapping[str, int]) -> tuple[str, ...]:
    """Rules of the output hook that tell the chain, by the priority, which control group a packet is from."""
    return tuple(
        f'oifname "{interface}" socket cgroupv2 level {path.strip("/").count("/") + 1} "{path.strip("/")}" '
        f'meta priority set {_MAJOR:x}:{number:x} comment "control group {groups.get(path, 0)}"'
        for number, path in enumerate(paths, 1)
    )


MARK_HEAD = f"type filter hook output priority {PRIORITY}; policy accept;"


@dataclass(frozen=True)
class Measured:
    """What the kernel has of a table: chains by name, with head and rules; names of counters."""

    chains: Mapping[str, tuple[str, tuple[str, ...]]]
    counters: tuple[str, ...]


def measured_tables(ruleset: str) -> Mapping[tuple[str, str], Measured]:
    """All tables of `nft -s list ruleset`, by family and name."""
    found: dict[tuple[str, str], Measured] = {}
    chains: dict[str, tuple[str, tuple[str, ...]]] = {}
    counters: list[str] = []
    block = ""
    for raw in ruleset.splitlines():
        line = raw.strip()
        words = line.split()
        if raw.startswith("table "):
            chains, counters = {}, []
            found[words[1], words[2]] = Measured(chains, ())
            key = (words[1], words[2])
        elif line.endswith("{") and words and words[0] in ("chain", "counter", "set", "map", "flowtable"):
            block = f"{words[0]} {words[1]}"
            if words[0] == "chain":
                chains[words[1]] = ("", ())
            elif words[0] == "counter":
                counters.append(words[1].strip('"'))
                found[key] = Measured(chains, tuple(counters))
        elif line == "}":
            block = ""
        elif block.startswith("chain ") and line:
            name = block.removeprefix("chain ")
            head, rules = chains[name]
            chains[name] = (line, rules) if line.startswith("type ") else (head, (*rules, line))
    return found


def same_chain(wanted: Chain, there: tuple[str, tuple[str, ...]] | None) -> bool:
    """Whether a chain is the one that was made of this plan: hook, plan, number of rules, and the ways in order.

    Versions of nft(8) write conditions differently, so these are known by the plan's digest.
    """
    if there is None:
        return False
    head, rules = there
    hook = wanted.head.split("priority")[0].replace('"', "").split()
    return (
        head.split("priority")[0].replace('"', "").replace("{", "").replace("}", "").split() == hook
        and len(rules) == len(wanted.rules)
        and _PLAN.findall(rules[0]) == _PLAN.findall(wanted.rules[0])
        and ways_of(rules) == ways_of(wanted.rules)
    )


def ways_of(rules: Iterable[str]) -> list[str]:
    """The lanes that rules lead to, in order."""
    return [found[1] for rule in rules if (found := _FORWARD.search(rule))]


def marks_of(there: Measured | None) -> tuple[str, ...]:
    """Comments of the rules that mark packets, in order."""
    if there is None or "out" not in there.chains:
        return ()
    return tuple(re.findall(r'comment "control group (\d+)"', "\n".join(there.chains["out"][1])))
