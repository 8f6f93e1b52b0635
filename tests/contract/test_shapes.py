"""Shapes on the simulated machine: any sequence of them, in any order, with the agent killed anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from node_agent.errors import AgentError, ConflictError
from node_agent.fault import tag_of
from node_agent.host.links import Interface
from node_agent.injector import Injector
from node_agent.lanes import is_armed, lane_counters
from node_agent.lanes.sync import differences, file_of, lanes_there, live_shapes, sync, wanted_tree
from node_agent.residue import look
from node_agent.shape import Shape
from node_agent.steps.shape_traffic import ShapeTraffic
from node_agent.traffic import Selection
from tests.contract.conftest import Rig
from tests.contract.simulated import Kernel, Killed, SimulatedHost, fresh_kernel
from tests.contract.simulated_links import LAN as LAN_INDEX

LAN = Selection(interface="lan", index=LAN_INDEX, guard=(22, 7443))
FIVE = (
    ("loss", Shape(loss_percent=10), {"v4": ("10.77.0.0/24",)}),
    ("delay", Shape(delay_ms=40), {"protocol": "tcp"}),
    ("rate", Shape(rate_kbit=2000), {"ports": ((5432, 5432),), "direction": "out"}),
    ("dup", Shape(duplicate_percent=5), {"direction": "out"}),
    ("cut", Shape(max_packet_bytes=900), {"v4": ("10.77.0.2/32",)}),
)


def _step(name: str, shape: Shape, selected: dict[str, Any]) -> ShapeTraffic:
    return ShapeTraffic(tag=tag_of(name), selection=LAN.model_copy(update=selected), shape=shape)


@pytest.fixture
def kernel() -> Kernel:
    return fresh_kernel()


@pytest.fixture
def standing(kernel: Kernel) -> tuple[Kernel, tuple[ShapeTraffic, ...]]:
    """Five shapes of one interface."""
    host = SimulatedHost(kernel)
    steps = tuple(_step(*one) for one in FIVE)
    for step in steps:
        step.capture(host)
        step.apply(host)
        assert step.leftovers(host, {}) and is_armed(host, step.tag)
    return kernel, steps


def _is_as_desired(host: SimulatedHost) -> bool:
    return differences(host, wanted_tree(host, "lan")) == ()


def test_all_orders_of_removal(standing: tuple[Kernel, tuple[ShapeTraffic, ...]]) -> None:
    kernel, steps = standing
    for number, order in enumerate(permutations(steps)):
        host = SimulatedHost(deepcopy(kernel))
        for step in order:
            step.revert(host, {})
            assert step.leftovers(host, {}) == (), order
            if number % 10 == 0:
                step.revert(host, None)
                assert step.leftovers(host, None) == (), "twice equals once"
        assert host.kernel.shaping.at_rest() and not host.kernel.netfilter.tables


def test_a_lane_of_others_is_not_touched(standing: tuple[Kernel, tuple[ShapeTraffic, ...]]) -> None:
    kernel, steps = standing
    host = SimulatedHost(kernel)
    for step in steps[:-1]:
        before = {name: one.index for name, one in lanes_there(host, "lan").items()}
        step.revert(host, {})
        after = {name: one.index for name, one in lanes_there(host, "lan").items()}
        stays = {tags: lane.name for lane in wanted_tree(host, "lan").lanes for tags in (lane.tags,)}
        kept = [name for name in stays.values() if name in before]
        assert kept and all(after[name] == before[name] for name in kept)


def test_killed_anywhere_while_others_stand(standing: tuple[Kernel, tuple[ShapeTraffic, ...]]) -> None:
    kernel, steps = standing
    for verb in ("revert", "apply"):
        start = deepcopy(kernel)
        if verb == "apply":
            steps[1].revert(SimulatedHost(start), {})
        counting = SimulatedHost(deepcopy(start))
        _do(verb, steps[1], counting)
        for number in range(1, counting.changes + 1):
            one = deepcopy(start)
            with pytest.raises(Killed):
                _do(verb, steps[1], SimulatedHost(one, die_at=number))
            host = SimulatedHost(one)
            steps[1].revert(host, {})
            assert steps[1].leftovers(host, {}) == (), f"{verb} killed before change {number}"
            assert all(is_armed(host, step.tag) for step in steps if step is not steps[1])


def _do(verb: str, step: ShapeTraffic, host: SimulatedHost) -> None:
    step.revert(host, {}) if verb == "revert" else step.apply(host)


def test_another_that_comes_or_goes_does_not_look_like_disarming(
    standing: tuple[Kernel, tuple[ShapeTraffic, ...]],
) -> None:
    """Whoever looks at one while another is planted or recovered sees it armed, at each moment."""
    kernel, steps = standing
    steps[1].revert(SimulatedHost(kernel), {})
    for verb in ("apply", "revert"):
        counting = SimulatedHost(deepcopy(kernel))
        _do(verb, steps[1], counting)
        for number in range(1, counting.changes + 1):
            one = deepcopy(kernel)
            with pytest.raises(Killed):
                _do(verb, steps[1], SimulatedHost(one, die_at=number))
            assert all(is_armed(SimulatedHost(one), step.tag) for step in steps if step is not steps[1]), number
        _do(verb, steps[1], SimulatedHost(kernel))


def test_rules_that_somebody_took_out_are_missed(standing: tuple[Kernel, tuple[ShapeTraffic, ...]]) -> None:
    kernel, steps = standing
    lines = kernel.netfilter.tables["netdev", "groundfault.lan"]
    lines.remove(next(line for line in lines if "fwd to" in line))
    assert not any(is_armed(SimulatedHost(kernel), step.tag) for step in steps)


CHOICES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("packet_loss", {"loss_percent": 10}),
    ("packet_loss", {"loss_percent": 20, "burst_packets": 4}),
    ("packet_delay", {"delay_ms": 30}),
    ("packet_jitter", {"jitter_ms": 10}),
    ("packet_duplicate", {"duplicate_percent": 5}),
    ("packet_corrupt", {"corrupt_percent": 2}),
    ("bandwidth_limit", {}),
    ("mtu_blackhole", {}),
)
SELECTORS: tuple[dict[str, Any], ...] = (
    {}, {"peers": ["10.77.0.2"]}, {"peers": ["10.77.0.0/24", "fd00:77::/64"]}, {"ports": "80,443"},
    {"protocol": "udp"}, {"protocol": "tcp", "ports": "5432"}, {"peers": ["10.77.0.2"], "protocol": "icmp"},
    {"interface": "mgmt"},
)  # fmt: skip


def _moves(draw: random.Random, count: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for number in range(count):
        name, parameters = draw.choice(CHOICES)
        chosen = {**parameters, **draw.choice(SELECTORS), "seed": number}
        chosen["direction"] = draw.choice(["out", "in", "both"])
        yield f"inj-{number}", name, chosen


@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_ends_as_it_began(rig: Rig, seed: int) -> None:
    draw = random.Random(seed)
    injector, host = rig.agent()
    start = look(host)
    standing: list[str] = []
    moves, planted, refused = _moves(draw, 300), 0, 0
    for _ in range(200):
        if standing and (len(standing) > 5 or draw.random() < 0.45):
            gone = standing.pop(draw.randrange(len(standing)))
            (view,) = injector.recover((gone,), "recover")
            assert (view.state, view.residue) == ("recovered", ())
        else:
            name, fault, parameters = next(moves)
            try:
                assert injector.apply(name, fault, parameters, 60).state == "active"
                standing.append(name)
                planted += 1
            except ConflictError:
                refused += 1
        assert all(differences(host, wanted_tree(host, i)) == () for i in ("lan", "mgmt"))
        assert {one.tag for one in live_shapes(host)} == {tag_of(name) for name in standing}
        assert all(view.evidence and view.evidence.armed for view in injector.injections())
    assert planted > 70 and refused > 0
    injector.recover(None, "recover")
    assert look(host) == start and injector.residue() == () and rig.is_healthy()


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_with_the_agent_killed_now_and_then(rig: Rig, seed: int) -> None:
    draw = random.Random(f"killed {seed}")
    for number, (name, fault, parameters) in enumerate(_moves(draw, 40)):
        injector, host = rig.agent(die_at=draw.randint(1, 60))
        try:
            _three(injector, f"{name}-{number}", fault, parameters)
        except Killed:
            pass
        except AgentError:
            assert not host.dead
        after = rig.restart()
        assert rig.is_healthy() and after.residue() == () and rig.open_journals() == []


def _three(injector: Injector, name: str, fault: str, parameters: dict[str, Any]) -> None:
    injector.apply(f"{name}-a", fault, parameters, 60)
    injector.apply(f"{name}-b", "packet_delay", {"delay_ms": 20}, 60)
    injector.apply(f"{name}-c", "packet_duplicate", {"duplicate_percent": 20, "peers": ["10.77.0.2"]}, 60)
    injector.recover((f"{name}-b",), "recover")


def test_the_name_of_a_lane_is_taken(kernel: Kernel) -> None:
    host, step = SimulatedHost(kernel), _step(*FIVE[0])
    step.apply(host)
    name = next(iter(lanes_there(host, "lan")))
    step.revert(host, {})
    kernel.shaping.made[name] = Interface(500, name, "dummy", "of somebody", 1500, True)
    changes = host.changes
    with pytest.raises(ConflictError, match=f"{name} that is not the lab's"):
        step.capture(host)
    assert host.changes == changes and name in kernel.shaping.made


@pytest.mark.parametrize("fate", ["gone", "renamed", "made anew"])
def test_an_interface_that_is_not_what_it_was(kernel: Kernel, fate: str) -> None:
    host = SimulatedHost(kernel)
    steps = [_step(*one) for one in FIVE[:2]]
    for step in steps:
        step.apply(host)
    lan = kernel.net.links.pop(LAN_INDEX)
    if fate == "renamed":
        kernel.net.links[LAN_INDEX] = replace(lan, name="lan0")
    if fate == "made anew":
        kernel.net.links[77] = replace(lan, index=77)
    assert not any(is_armed(host, step.tag) for step in steps)
    for step in steps:
        step.revert(host, {})
        assert step.leftovers(host, {}) == ()
    assert kernel.shaping.at_rest() and not kernel.netfilter.tables


def test_a_file_that_was_being_written_is_no_shape(kernel: Kernel) -> None:
    host, step = SimulatedHost(kernel), _step(*FIVE[0])
    step.apply(host)
    kernel.texts[file_of("groundfault-half")] = '{"tag": "groundfault-ha'
    assert is_armed(host, step.tag) and [one.tag for one in live_shapes(host)] == [step.tag]


def test_debris_of_a_lane_that_was_being_built_goes(kernel: Kernel) -> None:
    host = SimulatedHost(kernel)
    host.links.add_ifb("gf0123456789ab")
    host.links.add_ifb("ifb0")
    sync(host, "lan")
    assert [*kernel.shaping.made] == ["ifb0"], "those of others stay"


FOREIGN = """table netdev filter {
	chain mirror {
		type filter hook egress device "lan" priority 0; policy accept;
		ip daddr 10.9.9.9 fwd to "mgmt"
	}
}
"""


def test_a_chain_of_others_that_takes_packets_away_is_named(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SimulatedHost(kernel)
    monkeypatch.setattr(host.network, "ruleset", lambda: FOREIGN)
    with pytest.raises(ConflictError, match="chain mirror of netfilter table netdev filter"):
        _step(*FIVE[0]).capture(host)
    _step("other", Shape(delay_ms=1), {"direction": "in"}).capture(host)
    monkeypatch.setattr(host.network, "ruleset", lambda: FOREIGN.replace("fwd to", "counter comment"))
    _step(*FIVE[0]).capture(host)


def test_filters_of_others_with_actions_are_named(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost(kernel)
    police = (
        "filter protocol all pref 49152 matchall chain 0 handle 0x1\n\taction order 1: police 0x1 rate 1Mbit\n"
    )
    asked: list[tuple[str, ...]] = []

    def query(argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str:
        asked.append(argv)
        return police if argv[-1] == "egress" else "filter parent 8001: protocol ip u32 flowid 8001:10\n"

    monkeypatch.setattr(host, "query", query)
    for root, refused in (("fq_codel 0:", False), ("htb 8001:", False), ("clsact ffff:", True)):
        monkeypatch.setattr(host.links, "qdiscs", lambda root=root: {LAN_INDEX: [root]})
        if refused:
            with pytest.raises(ConflictError, match="matchall"):
                _step(*FIVE[0]).capture(host)
        else:
            _step(*FIVE[0]).capture(host)
    assert len(asked) == 2
    _step("other", Shape(delay_ms=1), {"direction": "in"}).capture(host)


def test_a_unit_that_was_restarted_is_not_armed(kernel: Kernel) -> None:
    group = "/system.slice/web.service"
    kernel.texts[f"/sys/fs/cgroup{group}/cgroup.procs"] = "77"
    host, step = SimulatedHost(kernel), _step("unit", Shape(delay_ms=1), {"cgroups": (group,), "direction": "out"})
    step.apply(host)
    assert is_armed(host, step.tag) and lane_counters(host, step.tag).matched == 0
    del kernel.texts[f"/sys/fs/cgroup{group}/cgroup.procs"]
    assert not is_armed(host, step.tag)
    step.revert(host, {})
    assert step.leftovers(host, {}) == () and not kernel.netfilter.tables
