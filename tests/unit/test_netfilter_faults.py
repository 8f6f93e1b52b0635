"""Rules of partition, tcp_reset and half_open; connections that fit; the lease of a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.errors import ConflictError, Refusal
from node_agent.fault import build_fault
from node_agent.faults.network.half_open import HalfOpen
from node_agent.faults.network.netfilter import find_far_ends, free_queue
from node_agent.faults.network.partition import Partition
from node_agent.faults.network.ports_exhausted import PortsExhausted
from node_agent.faults.network.tcp_reset import TcpReset
from node_agent.injector import Injector
from node_agent.steps.nft_flows import NftFlows
from node_agent.steps.nft_table import NftChain, NftTable
from node_agent.workers.socket_diag import Connection
from tests.contract.conftest import Rig
from tests.contract.simulated import SimulatedHost, fresh_kernel

TAG = "groundfault-a-1"
PEER = {"peers": ["10.77.0.3", "fd00::3"]}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


def table_of(host: SimulatedHost, fault: Partition | TcpReset | HalfOpen) -> NftTable:
    facts = Injector(host, Path("/nowhere"), "w2").facts()
    step = fault.steps(facts, fault.locate(host, facts), TAG)[0]
    assert isinstance(step, NftTable)
    return step


def rules_of(table: NftTable) -> dict[str, tuple[str, ...]]:
    return {chain.name: chain.rules for chain in table.chains}


def test_a_partition_lets_control_through_first_and_then_nothing(host: SimulatedHost) -> None:
    rules = rules_of(table_of(host, build_fault(Partition, PEER)))
    assert set(rules) == {"sent", "translated", "forwarded", "received"}
    for name, found in rules.items():
        assert found[0] == f'{"iifname" if name == "received" else "oifname"} "lo" accept'
        assert "tcp sport { 22, 7443 } accept" in found and "tcp dport { 22, 7443 } accept" in found
        assert all("accept" in one for one in found[:-2]) and "accept" not in "".join(found[-2:])
    assert rules["sent"][-2:] == (
        "ip daddr @v4 counter name out queue num 26470", "ip6 daddr @v6 counter name out queue num 26470",
    )  # fmt: skip
    assert rules["forwarded"][-1] == "ip6 daddr @v6 counter name out drop"
    assert rules["received"][-2] == "ip saddr @v4 counter name in drop"


def test_a_partition_one_way_and_told(host: SimulatedHost) -> None:
    one_way = table_of(host, build_fault(Partition, {**PEER, "direction": "in"}))
    assert set(rules_of(one_way)) == {"received"}
    told = rules_of(table_of(host, build_fault(Partition, {**PEER, "direction": "out", "action": "reject"})))
    assert set(told) == {"sent", "translated", "forwarded"}
    assert "meta l4proto tcp ip daddr @v4 counter name out reject with tcp reset" in told["sent"]
    assert "ip6 daddr @v6 counter name out reject with icmpx type admin-prohibited" in told["sent"]
    assert not any("queue" in rule for rules in told.values() for rule in rules)


def test_offloaded_flows_are_cut_before_they_pass_by(host: SimulatedHost) -> None:
    host.kernel.netfilter.tables["inet", "theirs"] = [
        "\tflowtable ft {", "\t\thook ingress priority filter", "\t\tdevices = { lan, veth0 }", "\t}",
    ]  # fmt: skip
    table = table_of(host, build_fault(Partition, PEER))
    fast = [(c.hook, c.device) for c in table.chains if c.hook == "ingress"]
    assert fast == [("ingress", "lan"), ("ingress", "veth0")]
    assert 'type filter hook ingress device "veth0" priority -390' in table.script()


def test_the_lease_is_the_first_word_of_every_chain(host: SimulatedHost) -> None:
    table = NftTable(name=TAG, title="t", chains=(NftChain(name="c", hook="input", priority=0, rules=("drop",)),))
    lines = [line.strip() for line in table.script().splitlines()]
    assert lines.index("meta nfproto != @lease accept") + 1 == lines.index("drop")
    assert "elements = { ipv4 timeout 120s, ipv6 timeout 120s }" in lines
    table.hold(host, host.boottime() + 30)  # there is no such table: nothing happens
    table.apply(host)
    with pytest.raises(ConflictError, match="already"):
        table.capture(host)
    table.hold(host, host.boottime() + 30)
    table.revert(host, None)
    table.revert(host, None)
    assert table.leftovers(host, None) == () and host.kernel.netfilter.tables == {}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["127.0.0.1"], "is this node itself"),
        (["::1"], "is this node itself"),
        (["no-such-node"], "does not resolve"),
        (["a b"], "is no name"),
        (["10.77.0.300"], "does not resolve"),
    ],
)
def test_far_ends_that_are_none(host: SimulatedHost, wanted: list[str], said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        find_far_ends(host, wanted)
    assert refused.value.field == "peers" and refused.value.allowed


def test_far_ends_by_name_address_and_network(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    says = {"getent": "10.77.0.3 STREAM w3\n10.77.0.3 DGRAM\nfe80::3%lan STREAM\n",
            "ip": "2: lan inet 10.77.0.2/24 brd 10.77.0.255 scope global lan\n"}  # fmt: skip
    monkeypatch.setattr(host, "query", lambda argv, **_: says[argv[0]])
    found = find_far_ends(host, ["w3", "10.78.0.1/16", "fd00::/64"])
    assert found.v4 == ("10.77.0.3/32", "10.78.0.0/16") and found.v6 == ("fd00::/64", "fe80::3/128")
    with pytest.raises(Refusal, match="this node itself"):
        find_far_ends(host, ["10.77.0.2"])
    assert find_far_ends(host, ["10.77.0.0/24"]).v4 == ("10.77.0.0/24",), "a network may have us in it"


def test_queues_that_others_listen_to_are_left_alone(host: SimulatedHost) -> None:
    assert free_queue(host) == 26470
    host.kernel.texts["/proc/net/netfilter/nfnetlink_queue"] = "26470 123 0 2 65535 0 0 9 1\n    0 1 0 2 65535\n"
    assert free_queue(host) == 26471
    assert free_queue(host, 2) == 26471


CONNECTIONS = (
    Connection("10.77.0.2", 41000, "10.77.0.3", 5432, 77),
    Connection("10.77.0.2", 5432, "10.77.0.4", 41000, 78),
    Connection("10.77.0.2", 22, "10.77.0.9", 50000, 79),
    Connection("127.0.0.1", 5432, "127.0.0.1", 50001, 77),
    Connection("10.77.0.2", 5432, "10.77.0.2", 50002, 77),
    Connection("fd00::2", 41001, "fd00::3", 80, 77),
)


@pytest.mark.parametrize(
    ("fields", "fitting"),
    [
        ({}, (0, 1, 5)),
        ({"ports": ((5432, 5432),)}, (0, 1)),
        ({"remotes": ("10.77.0.3/32",), "ports": ((5432, 5432),)}, (0,)),
        ({"remotes": ("10.77.0.4/32",), "ports": ((80, 80),)}, ()),
        ({"remotes": ("fd00::/64",)}, (5,)),
    ],
)
def test_connections_that_fit(host: SimulatedHost, fields: dict[str, object], fitting: tuple[int, ...]) -> None:
    host.kernel.netfilter.connections = list(CONNECTIONS)
    step = NftFlows.model_validate({"table": TAG, "guard": (22, 7443), **fields})
    assert step.fitting(host) == [CONNECTIONS[n] for n in fitting]


def test_both_directions_of_a_connection_are_in_the_sets() -> None:
    (script,) = NftFlows(table=TAG).scripts([CONNECTIONS[0], CONNECTIONS[5]])
    assert script == (
        "add element inet groundfault-a-1 flows4 { 10.77.0.2 . 41000 . 10.77.0.3 . 5432, "
        "10.77.0.3 . 5432 . 10.77.0.2 . 41000 }\n"
        "add element inet groundfault-a-1 flows6 { fd00::2 . 41001 . fd00::3 . 80, "
        "fd00::3 . 80 . fd00::2 . 41001 }\n"
    )
    assert len(NftFlows(table=TAG).scripts([CONNECTIONS[0]] * 4001)) == 3


def test_no_connection_is_refused_and_new_ones_need_none(rig: Rig) -> None:
    rig.kernel.netfilter.connections = []
    injector, _ = rig.agent()
    for fault in ("tcp_reset", "half_open"):
        with pytest.raises(Refusal, match="no TCP connection fits") as refused:
            injector.apply("inj-1", fault, {"ports": "5432"})
        assert refused.value.field == "ports"
    assert rig.is_healthy()
    assert injector.apply("inj-2", "tcp_reset", {"new_connections": True}).state == "active"
    rules = "\n".join(rig.kernel.netfilter.tables["inet", "groundfault-inj-2"])
    assert "meta l4proto tcp counter name far_end reject with tcp reset" in rules
    with pytest.raises(Refusal, match="does not go with unit"):
        build_fault(TcpReset, {"new_connections": True, "unit": "cron"})


def test_a_reset_spares_resets_and_what_provokes_it(rig: Rig) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", "tcp_reset", {"ports": "5432"})
    assert rig.kernel.netfilter.provoked == rig.kernel.netfilter.connections
    lines = [line.strip() for line in rig.kernel.netfilter.tables["inet", "groundfault-inj-1"]]
    chain = lines[lines.index("chain sent {") :]
    reset = next(n for n, line in enumerate(chain) if "reject with tcp reset" in line)
    assert chain.index("tcp urgptr 26470 accept") < reset and chain.index("tcp flags & rst == rst accept") < reset


def test_a_flushed_ruleset_is_told(rig: Rig) -> None:
    injector, _ = rig.agent()
    injector.apply("inj-1", "partition", {"peers": ["10.77.0.3"]})
    rig.kernel.netfilter.tables.clear()
    view = injector.view("inj-1")
    assert view.evidence is not None and not view.evidence.armed and "flushed" in view.evidence.notes[0]
    assert injector.extend("inj-1", 100).state == "active"
    assert injector.recover(("inj-1",), "recover")[0].state == "recovered"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"address": "w2", "port": 1}, "does not appear"), ({"address": "10.0.0.1"}, "go together"),
     ({"port": 5}, "go together")],
)  # fmt: skip
def test_ports_towards_nobody(parameters: dict[str, object], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        build_fault(PortsExhausted, parameters)


def test_more_ports_than_there_is_memory_for(rig: Rig) -> None:
    injector, _ = rig.agent()
    rig.kernel.texts["/proc/meminfo"] = "MemTotal:        200000 kB\n"
    with pytest.raises(Refusal, match="MiB of the kernel's memory"):
        injector.apply("inj-1", "ports_exhausted", {})
    with pytest.raises(Refusal, match="range has"):
        rig.kernel.texts["/proc/sys/net/ipv4/ip_local_port_range"] = "40000 40009\n"
        injector.apply("inj-1", "ports_exhausted", {"leave": 10})
    assert rig.is_healthy()


def test_a_table_larger_than_memory_is_not_filled(rig: Rig) -> None:
    injector, _ = rig.agent()
    rig.kernel.texts["/proc/sys/net/netfilter/nf_conntrack_max"] = "4000000\n"
    rig.kernel.texts["/proc/sys/net/netfilter/nf_conntrack_count"] = "10\n"
    with pytest.raises(Refusal, match="more than half of what is available"):
        injector.apply("inj-1", "conntrack_full", {})
    rig.kernel.texts["/proc/sys/net/netfilter/nf_conntrack_max"] = "100\n"
    with pytest.raises(Refusal, match="90 free entries"):
        injector.apply("inj-1", "conntrack_full", {"leave": 90})
    assert rig.is_healthy()
