"""The desired tree of an interface: a packet comes to the lane of exactly those shapes that select it."""

from __future__ import annotations

import ipaddress
import random
from dataclasses import dataclass
from itertools import combinations, permutations

import pytest

from node_agent.errors import ConflictError
from node_agent.host.links import Qdisc
from node_agent.lanes.boxes import Box, boxes_of, holds, meet
from node_agent.lanes.rules import table_of
from node_agent.lanes.tree import MAX_SHAPES, LiveShape, Tree, desired
from node_agent.shape import Bursts, Shape
from node_agent.traffic import Selection

LAN = Selection(interface="lan", index=3, guard=(22, 7443))


def live(name: str, shape: Shape, **selected: object) -> LiveShape:
    """A shape of an injection."""
    return LiveShape(tag=f"groundfault-{name}", selection=LAN.model_copy(update=selected), shape=shape)


FIVE = (
    live("loss", Shape(loss_percent=10), v4=("10.77.0.0/24",)),
    live("delay", Shape(delay_ms=40), protocol="tcp"),
    live("rate", Shape(rate_kbit=2000), ports=((5432, 5432),), protocol="tcp", direction="out"),
    live("dup", Shape(duplicate_percent=5), direction="out"),
    live("cut", Shape(max_packet_bytes=900), v4=("10.77.0.2/32",), v6=("fd00::/64",)),
)


@dataclass(frozen=True)
class Packet:
    """What the rules see of one."""

    far: str
    protocol: str
    sport: int = 0
    dport: int = 0
    group: str = "/user.slice"


def _is_in(packet: Packet, box: Box) -> bool:
    kinds = {"any": ("tcp", "udp", "icmp", "sctp"), "ported": ("tcp", "udp")}.get(box.protocol, (box.protocol,))
    address = ipaddress.ip_address(packet.far)
    return (
        packet.protocol in kinds
        and (box.far is None or any(address.version == n.version and address in n for n in box.far))
        and all(
            ports is None or any(a <= port <= b for a, b in ports)
            for ports, port in ((box.sport, packet.sport), (box.dport, packet.dport))
        )
        and (box.groups is None or any(f"{packet.group}/".startswith(f"{g}/") for g in box.groups))
    )


def _selects(selection: Selection, packet: Packet) -> bool:
    """Said once more, without boxes."""
    address = ipaddress.ip_address(packet.far)
    nets = [ipaddress.ip_network(n) for n in (*selection.v4, *selection.v6)]
    in_net = not nets or any(address.version == n.version and address in n for n in nets)
    ported = packet.protocol in ("tcp", "udp")
    in_ports = not selection.ports or (
        ported and any(a <= p <= b for a, b in selection.ports for p in (packet.sport, packet.dport))
    )
    in_group = not selection.cgroups or any(f"{packet.group}/".startswith(f"{g}/") for g in selection.cgroups)
    return in_net and in_ports and in_group and selection.protocol in ("any", packet.protocol)


def _random_selection(draw: random.Random) -> Selection:
    nets4 = ["10.77.0.2/32", "10.77.0.0/24", "10.77.0.0/16", "10.77.0.128/25", "192.168.0.0/24"]
    nets6 = ["fd00::/64", "fd00::2/128", "fe80::/10"]
    ports = [(80, 80), (443, 443), (8000, 8100), (8050, 9000), (1, 65535)]
    groups = ["/a.slice", "/a.slice/b.service", "/a.slice/b.service/c", "/d.slice"]
    protocol = draw.choice(["any", "any", "tcp", "udp", "icmp"])
    some = [] if protocol == "icmp" or draw.random() < 0.5 else sorted(draw.sample(ports, draw.randint(1, 2)))
    return LAN.model_copy(
        update={
            "v4": tuple(draw.sample(nets4, draw.choice([0, 0, 1, 2]))),
            "v6": tuple(draw.sample(nets6, draw.choice([0, 0, 1]))),
            "protocol": protocol,
            "ports": tuple(some),
            "cgroups": tuple(draw.sample(groups, 1)) if draw.random() < 0.2 else (),
            "direction": "out",
        }
    )


def _random_packet(draw: random.Random) -> Packet:
    far = draw.choice(["10.77.0.2", "10.77.0.200", "10.77.9.1", "192.168.0.7", "8.8.8.8", "fd00::2", "fd00::9",
                       "fe80::1", "2001:db8::1"])  # fmt: skip
    port = draw.choice([22, 80, 443, 8000, 8060, 8999, 50000])
    group = draw.choice(["/a.slice", "/a.slice/b.service", "/a.slice/b.service/c", "/d.slice/x", "/e.slice"])
    return Packet(far, draw.choice(["tcp", "udp", "icmp", "sctp"]), port, draw.choice([80, 8050, 50001]), group)


def _ways(shapes: tuple[LiveShape, ...]) -> list[tuple[tuple[str, ...], tuple[Box, ...]]]:
    from node_agent.lanes.tree import _sets

    return [(tuple(one.tag for one in members), boxes) for members, boxes in _sets(shapes)]


@pytest.mark.parametrize("seed", range(150))
def test_a_packet_comes_to_the_lane_of_exactly_those_that_select_it(seed: int) -> None:
    draw = random.Random(seed)
    shapes = tuple(
        live(f"s{n}", Shape(delay_ms=1)).model_copy(update={"selection": _random_selection(draw)})
        for n in range(draw.randint(1, 5))
    )
    ways = _ways(shapes)
    for _ in range(60):
        packet = _random_packet(draw)
        wanted = tuple(one.tag for one in shapes if _selects(one.selection, packet))
        came = next((tags for tags, boxes in ways if any(_is_in(packet, box) for box in boxes)), ())
        assert came == wanted, packet


def test_the_tree_does_not_depend_on_the_order_of_injection() -> None:
    """All 120 orders of five shapes: the same tree, and the same whichever of them go again."""
    whole = desired("lan", FIVE, {})
    for order in permutations(FIVE):
        assert desired("lan", order, {}) == whole
        for gone in range(1, 5):
            left = order[gone:]
            assert desired("lan", left, {}) == desired("lan", tuple(reversed(left)), {})
    assert desired("lan", (), {}) == Tree("lan")


def test_a_lane_whose_shapes_stay_keeps_its_name() -> None:
    """So it is not touched when another shape comes or goes."""
    before = {lane.tags: lane for lane in desired("lan", FIVE[:3], {}).lanes if lane.direction == "in"}
    after = {lane.tags: lane for lane in desired("lan", FIVE, {}).lanes if lane.direction == "in"}
    assert before and all(after[tags] == lane for tags, lane in before.items() if tags in after)


def test_sets_that_cannot_have_packets_of_their_own_have_no_lane() -> None:
    narrow = live("narrow", Shape(loss_percent=1), v4=("10.77.0.2/32",), protocol="tcp", direction="out")
    wide = live("wide", Shape(delay_ms=1), v4=("10.77.0.0/24",), direction="out")
    apart = live("apart", Shape(delay_ms=1), protocol="udp", direction="out", v4=("10.78.0.0/24",))
    tags = [lane.tags for lane in desired("lan", (narrow, wide, apart), {}).lanes]
    assert tags == [(narrow.tag, wide.tag), (apart.tag,), (wide.tag,)]


def test_golden_tree() -> None:
    """What two shapes become, to the word."""
    loss = live("loss", Shape(loss_percent=10, seed=7), v4=("10.77.0.2/32",), v6=("fd00::2/128",), direction="out")
    slow = live("slow", Shape(rate_kbit=1000, delay_ms=20), ports=((80, 80), (8000, 8100)), direction="out")
    tree = desired("lan", (slow, loss), {})
    assert [lane.tags for lane in tree.lanes] == [(loss.tag, slow.tag), (loss.tag,), (slow.tag,)]
    both, first, second = (lane.name for lane in tree.lanes)
    (chain,) = tree.chains
    assert chain.head == 'type filter hook egress device "lan" priority 500; policy accept;'
    a, b = f'counter name "{loss.tag}"', f'counter name "{slow.tag}"'
    ports = "{ 80, 8000-8100 }"
    assert chain.rules[1:5] == (
        "tcp sport { 22, 7443 } accept",
        "tcp dport { 22, 7443 } accept",
        "udp dport { 67, 68, 546, 547 } accept",
        "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, "
        "nd-redirect } accept",
    )
    assert chain.rules[5:] == (
        f'ip daddr 10.77.0.2 meta l4proto {{ tcp, udp }} th sport {ports} {a} {b} fwd to "{both}"',
        f'ip6 daddr fd00::2 meta l4proto {{ tcp, udp }} th sport {ports} {a} {b} fwd to "{both}"',
        f'ip daddr 10.77.0.2 meta l4proto {{ tcp, udp }} th dport {ports} {a} {b} fwd to "{both}"',
        f'ip6 daddr fd00::2 meta l4proto {{ tcp, udp }} th dport {ports} {a} {b} fwd to "{both}"',
        f'ip daddr 10.77.0.2 {a} fwd to "{first}"',
        f'ip6 daddr fd00::2 {a} fwd to "{first}"',
        f'meta l4proto {{ tcp, udp }} th sport {ports} {b} fwd to "{second}"',
        f'meta l4proto {{ tcp, udp }} th dport {ports} {b} fwd to "{second}"',
    )
    gate, harm, pipe = tree.lanes[0].qdiscs
    assert (gate.kind, gate.parent, gate.burst) == ("tbf", "root", 1522)
    assert (harm.kind, harm.parent, harm.delay_ns, harm.loss[0]) == ("netem", "1:1", 20_000_000, 429496730)
    assert (pipe.kind, pipe.parent, pipe.rate, pipe.burst, pipe.limit) == ("tbf", "2:1", 125_000, 1522, 31_250)
    assert [q.kind for q in tree.lanes[2].qdiscs] == ["netem", "tbf"]


def test_units_are_told_apart_by_the_priority() -> None:
    outer = live("outer", Shape(delay_ms=1), cgroups=("/system.slice",), direction="out")
    inner = live("inner", Shape(loss_percent=1), cgroups=("/system.slice/a.service",), direction="out")
    tree = desired("lan", (outer, inner), {"/system.slice": 5, "/system.slice/a.service": 77})
    assert tree.marks == (
        'oifname "lan" socket cgroupv2 level 1 "system.slice" meta priority set 6f66:1 comment "control group 5"',
        'oifname "lan" socket cgroupv2 level 2 "system.slice/a.service" meta priority set 6f66:2 '
        'comment "control group 77"',
    )
    rules = tree.chains[0].rules[5:]
    assert [rule.split(" counter")[0] for rule in rules] == [
        "meta priority 6f66:2 meta priority set none",
        "meta priority { 6f66:1, 6f66:2 } meta priority set none",
    ]


@pytest.mark.parametrize(
    ("a", "b", "parameter"),
    [
        (Shape(jitter_ms=5, delay_ms=10, distribution="normal"), Shape(jitter_ms=5, delay_ms=10), "jitter_ms"),
        (Shape(bursts=Bursts(enter_percent=1, leave_percent=9)),) * 2 + ("bursts",),
        (Shape(loss_percent=5, loss_correlation_percent=20), Shape(loss_percent=5), "loss_correlation_percent"),
        (Shape(delay_ms=5, reorder_percent=5), Shape(delay_ms=5, reorder_percent=5, reorder_gap=3), "reorder_gap"),
        (Shape(delay_ms=40_000), Shape(delay_ms=30_000), "delay_ms"),
    ],
)
def test_what_has_no_common_effect_is_refused_by_name(a: Shape, b: Shape, parameter: str) -> None:
    with pytest.raises(ConflictError, match="one-1 and two-2") as refused:
        desired("lan", (live("one-1", a), live("two-2", b)), {})
    assert refused.value.field == parameter
    apart = (live("one-1", a, v4=("10.0.0.1/32",)), live("two-2", b, v4=("10.0.0.2/32",)))
    assert len(desired("lan", apart, {}).lanes) == 4, "on other packets they live side by side"


def test_too_many_are_refused() -> None:
    same = [live(f"s-{n}", Shape(delay_ms=n)) for n in range(MAX_SHAPES + 1)]
    assert len(desired("lan", same[:-1], {}).lanes) == 2, "all with everybody: one lane each way"
    with pytest.raises(ConflictError, match="8 shapes outwards"):
        desired("lan", same, {})
    crossing = [live(f"p-{n}", Shape(delay_ms=n), v4=(f"10.{n}.0.0/16", "10.99.0.0/16")) for n in range(3)]
    crossing += [live(f"q-{n}", Shape(delay_ms=n), ports=((n, n), (99, 99))) for n in range(1, 5)]
    with pytest.raises(ConflictError, match="overlap in more than 32 ways"):
        desired("lan", crossing, {})


def test_boxes_in_each_other() -> None:
    ported = boxes_of(LAN.model_copy(update={"ports": ((80, 80),), "protocol": "tcp"}))
    assert len(ported) == 2 and len(meet(ported, ported)) == 2
    everything = boxes_of(LAN)
    assert all(holds(everything, box) for box in ported) and not holds(ported, everything[0])
    assert meet(boxes_of(LAN.model_copy(update={"protocol": "icmp"})), ported) == ()


def test_names_of_tables() -> None:
    names = ("lan", "eth0.10", "br-1", "wlan0@x", "-x", "ein name")
    tables = [table_of(name) for name in names]
    assert tables[:3] == ["groundfault.lan", "groundfault.eth0.10", "groundfault.br-1"]
    assert len(set(tables)) == len(names) and all(t.replace(".", "").replace("-", "").isalnum() for t in tables)


def test_names_of_lanes_fit() -> None:
    for pair in combinations(FIVE, 2):
        assert all(len(lane.name) <= 15 and len(lane.alias) < 256 for lane in desired("lan", pair, {}).lanes)
    assert isinstance(desired("lan", FIVE, {}).lanes[0].qdiscs[0], Qdisc)
