"""Selections of traffic as sets: what two of them have in common, and whether one holds the other. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from node_agent.traffic import Network, PortRange, Selection

Ports = tuple[PortRange, ...]


@dataclass(frozen=True)
class Box:
    """Packets for which each of these holds; None: whatever it is.

    `far` are networks of the far end. `sport` and `dport` are ports of the packet's own source and destination.
    `protocol` has besides the words of a user "ported": TCP or UDP. `groups` are paths of control groups.
    """

    far: tuple[Network, ...] | None
    protocol: Literal["any", "ported", "tcp", "udp", "icmp"]
    sport: Ports | None = None
    dport: Ports | None = None
    groups: tuple[str, ...] | None = None


def boxes_of(selection: Selection) -> tuple[Box, ...]:
    """The boxes whose union a selection is: with ports there are two, one for each end that can have them."""
    far = tuple(ipaddress.ip_network(text) for text in (*selection.v4, *selection.v6)) or None
    protocol = "ported" if selection.ports and selection.protocol == "any" else selection.protocol
    box = Box(far, protocol, groups=selection.cgroups or None)
    if not selection.ports:
        return (box,)
    return replace(box, sport=selection.ports), replace(box, dport=selection.ports)


def meet(left: Iterable[Box], right: Iterable[Box]) -> tuple[Box, ...]:
    """What two unions of boxes have in common; boxes that are part of another are left out."""
    common = [box for a, b in product(left, right) if (box := _both(a, b)) is not None]
    kept: list[Box] = []
    for box in common:
        if not any(holds((other,), box) for other in kept):
            kept = [other for other in kept if not holds((box,), other)] + [box]
    return tuple(kept)


def holds(outer: Iterable[Box], inner: Box) -> bool:
    """Whether one of these boxes holds the whole of another. "No" may be wrong, "yes" never is."""
    return any(
        _subset(inner.far, box.far, _networks_within)
        and box.protocol in _wider(inner.protocol)
        and _subset(inner.sport, box.sport, _ports_within)
        and _subset(inner.dport, box.dport, _ports_within)
        and _subset(inner.groups, box.groups, _groups_within)
        for box in outer
    )


def _both(a: Box, b: Box) -> Box | None:
    protocol = a.protocol if b.protocol in _wider(a.protocol) else b.protocol
    if a.protocol not in _wider(protocol) or b.protocol not in _wider(protocol):
        return None
    far = a.far if b.far is None else b.far if a.far is None else _common_networks(a.far, b.far)
    sport = a.sport if b.sport is None else b.sport if a.sport is None else _common_ports(a.sport, b.sport)
    dport = a.dport if b.dport is None else b.dport if a.dport is None else _common_ports(a.dport, b.dport)
    groups = a.groups if b.groups is None else b.groups if a.groups is None else _common_groups(a.groups, b.groups)
    if () in (far, sport, dport, groups):
        return None
    return Box(far, protocol, sport, dport, groups)


def _wider(protocol: str) -> tuple[str, ...]:
    """A protocol and what it is part of."""
    return {
        "any": ("any",), "ported": ("ported", "any"), "tcp": ("tcp", "ported", "any"),
        "udp": ("udp", "ported", "any"), "icmp": ("icmp", "any"),
    }[protocol]  # fmt: skip


def _subset(inner: tuple | None, outer: tuple | None, within: object) -> bool:  # type: ignore[type-arg]
    if outer is None:
        return True
    assert callable(within)
    return inner is not None and bool(within(inner, outer))


def _networks_within(inner: tuple[Network, ...], outer: tuple[Network, ...]) -> bool:
    return all(any(_is_part(one, other) for other in outer) for one in inner)


def _is_part(one: Network, other: Network) -> bool:
    return one.version == other.version and one.subnet_of(other)  # type: ignore[arg-type]


def _common_networks(a: tuple[Network, ...], b: tuple[Network, ...]) -> tuple[Network, ...]:
    return collapsed([*(x for x in a if _networks_within((x,), b)), *(y for y in b if _networks_within((y,), a))])


def collapsed(networks: Iterable[Network]) -> tuple[Network, ...]:
    """The same addresses in as few networks as possible, sorted, IPv4 first."""
    known = list(networks)
    four = ipaddress.collapse_addresses(n for n in known if isinstance(n, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(n for n in known if isinstance(n, ipaddress.IPv6Network))
    return (*sorted(four), *sorted(six))


def _ports_within(inner: Ports, outer: Ports) -> bool:
    return all(any(low <= first and last <= high for low, high in outer) for first, last in inner)


def _common_ports(a: Ports, b: Ports) -> Ports:
    shared = ((max(x[0], y[0]), min(x[1], y[1])) for x, y in product(a, b))
    return joined(pair for pair in shared if pair[0] <= pair[1])


def joined(ranges: Iterable[PortRange]) -> Ports:
    """The same ports in as few ranges as possible, sorted."""
    done: list[PortRange] = []
    for first, last in sorted(ranges):
        if done and first <= done[-1][1] + 1:
            done[-1] = (done[-1][0], max(done[-1][1], last))
        else:
            done.append((first, last))
    return tuple(done)


def below(path: str, above: str) -> bool:
    """Whether a control group is another one, or lies in it."""
    return path == above or path.startswith(f"{above.rstrip('/')}/")


def _groups_within(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    return all(any(below(one, other) for other in outer) for one in inner)


def _common_groups(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(_deeper(a, b)))


def _deeper(a: tuple[str, ...], b: tuple[str, ...]) -> Iterator[str]:
    for x, y in product(a, b):
        if below(x, y):
            yield x
        elif below(y, x):
            yield y
