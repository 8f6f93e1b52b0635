"""Messages of rtnetlink as the kernel sends them; steps of links, routes and neighbours on a simulated machine."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from node_agent import routing_state
from node_agent.control_paths import ControlPath, control_paths, management_links
from node_agent.errors import ConflictError, Refusal
from node_agent.facts import gather_facts
from node_agent.fault import Fault, build_fault
from node_agent.faults.network.arp_poison import ArpPoison
from node_agent.faults.network.link_down import LinkDown
from node_agent.faults.network.route_loss import RouteLoss
from node_agent.flapping import Flapping
from node_agent.host import rtmessages as rt
from node_agent.host.routing import Entry, Link
from node_agent.probe import run_probes
from node_agent.steps import Resource
from node_agent.steps.link_state import LinkState
from tests.contract.simulated import SimulatedHost, fresh_kernel
from tests.contract.simulated_links import LAN, MGMT, PEER, PEER_MAC, SimNet, address

FAULTS: Mapping[str, type[Fault]] = {"link_down": LinkDown, "arp_poison": ArpPoison, "route_loss": RouteLoss}


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


def planned(host: SimulatedHost, fault_name: str, **parameters: Any) -> Any:
    fault = build_fault(FAULTS[fault_name], parameters)
    facts = gather_facts(host, "w1", run_probes(SimulatedHost(fresh_kernel())))
    target = fault.locate(host, facts)
    return target, fault.steps(facts, target, "groundfault-x")


def route_body(flags: int, *more: tuple[int, bytes]) -> bytes:
    return rt.ROUTE.pack(2, 16, 0, 0, 254, 4, 0, 1, flags) + rt.packed([(rt.RTA_DST, bytes((10, 9, 0, 0))), *more])


def hop(flags: int) -> bytes:
    gateway = rt.packed([(rt.RTA_GATEWAY, bytes((10, 77, 0, 2)))])
    return struct.pack("=HBBi", 8 + len(gateway), flags, 2, LAN) + gateway


def test_what_passes_is_no_part_of_a_route() -> None:
    dead, cache = 1 | 16, (rt.RTA_CACHEINFO, bytes(32))
    seen = rt.entry_of("route", route_body(dead | 4, (rt.RTA_MULTIPATH, hop(dead)), cache, (99, b"unknown")))
    assert seen == rt.entry_of("route", route_body(4, (rt.RTA_MULTIPATH, hop(0)), (99, b"unknown")))
    assert b"unknown".hex() in seen.raw, "what is not understood is kept"
    assert rt.interfaces_of(seen) == (LAN,)


def test_of_a_nexthop_object_the_route_has_only_the_number() -> None:
    told = ((rt.RTA_NH_ID, struct.pack("=I", 7)), (rt.RTA_OIF, struct.pack("=I", LAN)), (rt.RTA_GATEWAY, bytes(4)))
    entry = rt.entry_of("route", route_body(0, *told))
    assert rt.nexthop_of(entry) == 7 and rt.interfaces_of(entry) == ()


def test_lifetimes_do_not_make_another_address() -> None:
    def with_lifetime(seconds: int) -> Entry:
        life = (rt.IFA_CACHEINFO, struct.pack("=IIII", seconds, seconds, 1, 2))
        flags = (rt.IFA_FLAGS, struct.pack("=I", 0x40 | 0x200))
        body = rt.ADDRESS.pack(10, 64, 0x40, 0, LAN) + rt.packed([(rt.IFA_ADDRESS, bytes(16)), life, flags])
        return rt.entry_of("address", body)

    one, other = with_lifetime(5), with_lifetime(6)
    assert one != other and rt.identity(one) == rt.identity(other)
    assert struct.pack("=I", 0x200).hex() in one.raw, "it is not tentative any more"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            rt.make_route("10.9.0.0/16", gateway=PEER, index=3, priority=77),
            "route 10.9.0.0/16 via 10.77.0.2 metric 77",
        ),
        (rt.make_route("::/0", kind=rt.BLACKHOLE, table=300), "route blackhole ::/0 table 300"),
        (rt.make_neighbour(3, "fd00::1", PEER_MAC, rt.NUD_STALE), f"neighbour fd00::1 {PEER_MAC}"),
        (address(3, "10.77.0.1/24"), "address 10.77.0.1/24"),
    ],
)
def test_entries_in_words(entry: Entry, words: str) -> None:
    assert rt.shown(entry) == words and rt.entry_of(entry.kind, bytes.fromhex(entry.raw)) == entry


def test_whose_connections_are_control(host: SimulatedHost) -> None:
    assert control_paths(host) == (ControlPath("10.0.2.15", "10.0.2.2"),)
    assert set(management_links(host)) == {MGMT}
    host.kernel.texts["/proc/net/tcp6"] += (
        "   0: 0000000000000000FFFF000001004D0A:0016 0000000000000000FFFF000002004D0A:D431 01\n"
    )
    assert ControlPath("10.77.0.1", "10.77.0.2") in control_paths(host)
    assert LAN in management_links(host), "somebody came in by ssh that way"


def test_what_a_control_interface_is_stacked_on_is_needed_too(host: SimulatedHost) -> None:
    host.kernel.texts["/sys/class/net/mgmt/lower_lan"] = ""
    assert set(management_links(host)) == {MGMT, LAN}
    with pytest.raises(Refusal, match="never a target: control traffic"):
        planned(host, "link_down", interface="lan")


def test_the_only_interface_is_refused(host: SimulatedHost) -> None:
    del host.kernel.net.links[LAN]
    host.kernel.net.entries = {e for e in host.kernel.net.entries if LAN not in rt.interfaces_of(e)}
    with pytest.raises(Refusal, match="mgmt is the only one"):
        planned(host, "link_down")


def test_a_carrier_that_can_be_taken_keeps_everything(host: SimulatedHost) -> None:
    host.kernel.net.carrier_switch = True
    before = set(host.kernel.net.entries)
    _, (_, step) = planned(host, "link_down")
    step.apply(host)
    link = host.kernel.net.links[LAN]
    assert link.up and not link.carrier and host.kernel.net.entries == before
    step.revert(host, {})
    assert host.kernel.net == replace(SimNet(), carrier_switch=True)


def test_an_interface_that_is_gone_took_everything_along(host: SimulatedHost) -> None:
    _, (_, step) = planned(host, "link_down", interface="lan")
    undo = step.capture(host)
    step.apply(host)
    del host.kernel.net.links[LAN]
    step.revert(host, undo)
    assert step.leftovers(host, undo) == ()
    with pytest.raises(ConflictError, match="gone already"):
        step.capture(host)


def test_a_renamed_interface_keeps_its_number(host: SimulatedHost) -> None:
    _, (_, step) = planned(host, "link_down", interface="lan")
    step.apply(host)
    host.kernel.net.links[LAN] = replace(host.kernel.net.links[LAN], name="other")
    step.revert(host, {})
    assert host.kernel.net.links[LAN] == Link(LAN, "other", up=True, carrier=True, mac="52:54:00:67:02:01")
    assert host.kernel.net.entries == SimNet().entries


def held(host: SimulatedHost, fault_name: str, **parameters: Any) -> list[Resource]:
    kinds = ("interface", "address", "route", "neighbour")
    steps = planned(host, fault_name, **parameters)[1]
    return [r for step in steps for r in step.resources() if r.kind in kinds]


def test_a_fault_of_an_interface_and_one_of_its_routes_do_not_go_together(host: SimulatedHost) -> None:
    link = held(host, "link_down")
    for other in (held(host, "route_loss", destination="10.9.0.0/16"), held(host, "arp_poison", peers=[PEER])):
        assert any(a.conflicts(b) for a in link for b in other)
        assert not any(a.conflicts(b) for a in other for b in held(host, "arp_poison", peers=["10.77.0.9"]))


@pytest.mark.parametrize(("peer", "state"), [(PEER, rt.NUD_STALE), ("10.77.0.50", rt.NUD_PERMANENT)])
def test_a_neighbour_is_as_before(host: SimulatedHost, peer: str, state: int) -> None:
    _, (_, step) = planned(host, "arp_poison", peers=[peer])
    before = host.routing.neighbour(LAN, peer)
    step.apply(host)
    now = host.routing.neighbour(LAN, peer)
    assert now is not None and rt.neighbour_of(now).mac == step.mac and step.leftovers(host, {}) != ()
    for _ in range(2):
        step.revert(host, {})
        assert host.routing.neighbour(LAN, peer) == before and rt.neighbour_of(before).state == state  # type: ignore[arg-type]
        assert step.leftovers(host, {}) == ()


def test_a_neighbour_that_somebody_has_mended_stays(host: SimulatedHost) -> None:
    _, (_, step) = planned(host, "arp_poison", peers=[PEER])
    step.apply(host)
    theirs = rt.make_neighbour(LAN, PEER, "02:00:00:00:00:77", rt.NUD_PERMANENT)
    host.routing.put(theirs)
    step.revert(host, {})
    assert host.routing.neighbour(LAN, PEER) == theirs and step.leftovers(host, {}) == ()


@pytest.mark.parametrize(
    ("fault", "parameters", "field"),
    [
        ("arp_poison", {"peers": ["10.0.2.2"]}, "peers"), ("arp_poison", {"peers": ["10.9.0.1"]}, "peers"),
        ("arp_poison", {"peers": ["10.77.0.0/24"]}, "peers"),
        ("arp_poison", {"peers": [PEER], "mac": "xx"}, "mac"),
        ("arp_poison", {"peers": [PEER], "holder": "10.77.0.99"}, "holder"),
        ("arp_poison", {"peers": [PEER], "interface": "lo"}, "interface"),
        ("route_loss", {}, "destination"), ("route_loss", {"destination": "10.9.0.1/16"}, "destination"),
        ("route_loss", {"destination": "10.0.2.0/24"}, "destination"),
        ("route_loss", {"destination": "10.0.2.0/25", "how": "blackhole"}, "destination"),
        ("route_loss", {"peers": ["10.0.2.2"], "how": "prohibit"}, "destination"),
        ("route_loss", {"destination": "10.9.0.0/16", "how": "wrong_gateway", "gateway": PEER}, "gateway"),
        ("route_loss", {"destination": "10.9.0.0/16", "gateway": PEER}, "gateway"),
        ("route_loss", {"destination": "10.9.0.0/16", "table": 255}, "table"),
        ("link_down", {"interface": "lna"}, "interface"), ("link_down", {"interface": "lo"}, "interface"),
        ("link_down", {"interface": "mgmt"}, "interface"),
    ],
)  # fmt: skip
def test_refusals(host: SimulatedHost, fault: str, parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        planned(host, fault, **parameters)
    assert refused.value.field == field and host.changes == 0


def test_the_default_route_may_go_where_control_does_not_take_it(host: SimulatedHost) -> None:
    target, _ = planned(host, "route_loss", destination="default")
    assert target.describe() == "route 0.0.0.0/0 via 10.0.2.2"


@pytest.mark.parametrize("how", ["gone", "blackhole", "wrong_gateway"])
def test_a_route_that_somebody_has_set_instead_stays(host: SimulatedHost, how: str) -> None:
    _, (_, step) = planned(host, "route_loss", destination="10.9.0.0/16", how=how)
    step.apply(host)
    for entry in step.standing(host.routing):
        host.routing.take(entry)
    theirs = rt.make_route("10.9.0.0/16", gateway="10.77.0.7", index=LAN, priority=77)
    host.routing.put(theirs)
    step.revert(host, {})
    assert [e for e in host.routing.routes() if rt.route_of(e).destination == "10.9.0.0/16"] == [theirs]
    assert step.leftovers(host, {}) == ()


def test_a_wrong_gateway_is_nobody_known(host: SimulatedHost) -> None:
    found = {
        planned(host, "route_loss", destination="10.9.0.0/16", how="wrong_gateway", seed=n)[0] for n in range(40)
    }
    gateways = {rt.route_of(one.bad[0].entry).gateway for one in found}
    assert len(gateways) > 10 and not gateways & {PEER, "10.77.0.1", "10.77.0.50", "10.77.0.0", "10.77.0.255"}


def test_times_of_flapping_are_of_the_seed() -> None:
    state = LinkState(name="lan", members=(LAN,), names=("lan",))
    wanted = Flapping(state=state, down_s=1, up_s=4, jitter_percent=50, seed=3)
    first, again = ([phase for phase, _ in zip(wanted.phases(), range(40), strict=False)] for _ in range(2))
    assert first == again and [up for up, _ in first[:4]] == [False, True, False, True]
    assert all(0.5 <= s <= 1.5 for up, s in first if not up) and all(2 <= s <= 6 for up, s in first if up)
    assert len({s for _, s in first}) == 40


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (address(3, "10.77.0.1/24"), address(4, "10.77.0.1/24")),
        (rt.make_neighbour(3, PEER, PEER_MAC, 0x80), rt.make_neighbour(4, PEER, PEER_MAC, 0x80)),
        (rt.make_route("10.9.0.0/16", gateway=PEER, index=3), rt.make_route("10.9.0.0/16", gateway=PEER, index=4)),
    ],
)
def test_a_card_that_was_plugged_in_again_is_the_same(one: Entry, other: Entry) -> None:
    assert one != other and rt.without_numbers(one) == rt.without_numbers(other)


def test_state_of_what_hangs_on_interfaces(host: SimulatedHost) -> None:
    assert routing_state.interfaces(host) == {"lo": "up", "mgmt": "up", "lan": "up"}
    assert set(routing_state.neighbours(host)) == {"10.77.0.50 dev lan"}, "the others come and go"
    assert "10.9.0.0/16 table 254" in routing_state.routes(host)
    host.kernel.texts["/proc/net/fib_triestat"] = "Main:\n\tPrefixes:       900000\n"
    assert routing_state.routes(host) == {}, "too many to look at"
